module details

go 1.22
