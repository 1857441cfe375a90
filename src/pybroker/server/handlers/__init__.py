"""One function for each command: protobuf objects end here, the broker's objects begin."""
