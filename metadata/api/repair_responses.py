"""Responses about streams in which an operator mends what a publisher or a clock has done."""

from datetime import datetime

from pydantic import Field

from metadata.api.response_base import ApiResponse


class SetTxidResponse(ApiResponse):
    """The last txid, which is durable; no record before ``offset`` counts any more."""

    name: str
    offset: int = Field(description="the stream's end when it was set")
    txid: int = Field(description="what was set")
    last_txid: int = Field(
        description="the last one now: larger, if a publisher has stored one at that offset or after it"
    )


class ResetStreamTimeResponse(ApiResponse):
    """The time that the stream's next record gets at the least: in force at the leader, stored with it."""

    name: str
    before: datetime = Field(description="as it was")
    time: datetime = Field(description="as it is now; the same if it was not ahead of the leader's clock")
