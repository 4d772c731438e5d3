package nearpath

// ReasonName is for tests.
var ReasonName = reasonName
