from support.executing import template as template
