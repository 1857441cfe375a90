"""The plain Python implementations of the compiled scanner and packer, used where there is no C compiler."""
