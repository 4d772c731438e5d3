module handler

go 1.26
