"""Values that are JSON objects, as Spark's SQL reads them by a schema; pure.

Fields that a schema does not name are left out, fields that an object lacks are null. A value that is no such
object, or has another type in a field, ends the query with an error: a null would go unnoticed.
"""


def parsed(schema: str) -> str:
    """Return the SQL of the column ``value`` as a struct of ``schema``, in Spark's DDL."""
    return f"from_json(CAST(value AS STRING), {text_literal(schema)}, map('mode', 'FAILFAST'))"


def text_literal(text: str) -> str:
    """Return a text as SQL."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def name_literal(name: str) -> str:
    """Return the name of a column as SQL."""
    return "`" + name.replace("`", "``") + "`"
