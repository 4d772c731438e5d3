//! Tells the linker that Node brings the functions of its API.

fn main() {
    napi_build::setup();
}
