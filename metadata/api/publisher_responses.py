"""Responses about a stream's publishers: what is remembered of them, and what an operator has mended."""

from datetime import datetime

from pydantic import Field

from metadata.api.response_base import ApiResponse


class TxidPlace(ApiResponse):
    """A txid, and where in the stream it stands."""

    txid: int
    leader_epoch: int = Field(description="of its batch; 0: not known")
    offset: int = Field(description="of its record, or of the batch that has it")


class SessionInfo(ApiResponse):
    """The last message of a publisher's session."""

    session: str = Field(description="its id, each byte as one character (Latin-1)")
    sequence: int
    offset: int = Field(description="of the last record of the message")
    time: datetime = Field(description="of that record")
    gapless: bool = Field(description="whether all numbers from 1 up to the sequence are stored")


class StreamPublishers(ApiResponse):
    """The last txid and the sessions of a stream, of records that are gone as well."""

    name: str
    incarnation: str = Field(description="identity of this life of the stream")
    end: int = Field(description="sessions are told as of the records below, which are committed")
    last_txid: TxidPlace | None = Field(
        description="of its records; it counts unless `txid_set` is behind it; null: none has had one"
    )
    txid_set: TxidPlace | None = Field(
        description="what an operator has set: txids of records before it do not count; null: nothing"
    )
    sessions: list[SessionInfo] = Field(description="in the order of their ids")
    more: bool = Field(description="whether there are more sessions behind the last of these")


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
