"""How the page of a study begins and what it shows beyond tables and figures: one file is one
study. A study without a file here has a page all the same.
"""
