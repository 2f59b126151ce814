"""The course as static pages: the stored notebooks, the guides and the library's reference, by Sphinx with MyST-NB.

The command is `course site`; `course slides` makes a lecture of a lesson. Nothing is run and nothing is fetched, when
the site is built and when it is read: the pages ask no other host for anything, and explorers live on the scripts and
tables that the stored notebooks carry.
"""
