//! Configures the linker: Node provides the functions of its API.

fn main() {
    napi_build::setup();
}
