module nearpath.io/nearpath

go 1.26
