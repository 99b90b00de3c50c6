"""Tables, figures and a page from run folders."""
