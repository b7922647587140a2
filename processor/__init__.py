"""The Spark side: applications whose state is published to changelogs, and the ownership controller."""
