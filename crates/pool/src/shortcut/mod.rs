//! A warm socket in the place of a function's own, at connect().
