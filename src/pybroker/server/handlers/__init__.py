"""One function per protocol command. Protobuf objects do not pass beyond these functions."""
