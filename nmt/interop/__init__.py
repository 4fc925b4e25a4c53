# Other programs' models, in and out.
