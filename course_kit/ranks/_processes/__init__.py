"""The life of ranks: started, called, packed, heard and ended. No lesson needs a look inside."""
