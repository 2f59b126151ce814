"""The diagnosis of a failed call: which rank waits for which, in which line. No lesson needs a look inside."""
