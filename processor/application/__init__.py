"""The users' API: declare sources, write ordinary PySpark, declare stores.

    application_id = "clicks"

    def build(app: Application) -> None:
        clicks = parse_json(app.stream("clicks"), {"user": FieldType.TEXT})
        ...
        app.store("clicks-per-user", counts)

Sources are plain streaming DataFrames with the columns of `rows.ORIGIN`; a store takes any DataFrame.

Nothing here starts a query.
"""

from processor.application.declared import Application, Source, SourceKind, SourceReader

__all__ = ("Application", "Source", "SourceKind", "SourceReader")
