"""How ranks live: started, called, packed, heard and ended. A reader of the lessons needs none of it."""
