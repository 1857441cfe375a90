"""`pybroker pipeline ...`: what runs over topics as a whole, in this process or under Spark."""
