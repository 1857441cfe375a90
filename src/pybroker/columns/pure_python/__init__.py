"""Plain Python implementations of the compiled scanner and packer, for installations without a C compiler."""
