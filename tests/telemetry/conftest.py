from support.executing import zygote as zygote
