"""Errors between Spark and a cluster alone."""

from envelope.errors import RequestError


class InvalidOption(RequestError, err_code="invalid_option", ack_code=60_053):
    """An option of the Spark source or sink that does not exist, is out of place, or has no such value."""


class DataLoss(RequestError, err_code="data_loss", status=410, ack_code=60_054):
    """Records that a Spark query is to read are not there any more, or its checkpoint is of other streams.

    ``detail`` names the stream and the offsets. With ``failOnDataLoss`` false it is a warning, and the query
    goes on with what is there.
    """
