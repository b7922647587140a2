"""Response times: Spark keeps a histogram of each path and minute, and a custom store answers quantiles from them."""
