module chain

go 1.26

require nearpath.io/nearpath v0.0.0

replace nearpath.io/nearpath => ../../../sdk/go
