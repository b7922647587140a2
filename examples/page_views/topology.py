"""The application of the project's README: counts the views of each page. Run it with `statehouse process`."""

from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from processor.application import Application

application_id = "page-views"


def build(app: Application) -> None:
    """Count the records of the topic `views` by their value, a page's name."""
    views = app.stream("views")
    pages = views.select(F.col("value").cast("string").alias("key"))
    counts = pages.groupBy("key").agg(F.count("*").cast("string").alias("value"))
    app.store("views-per-page", counts)
