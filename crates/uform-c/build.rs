//! Gives the shared library the name under which programs ask for it at run time.

fn main() {
    // The major version: programs linked to one 0.x or 1.x find every later one of the same number.
    let name = format!("libuform.so.{}", env!("CARGO_PKG_VERSION_MAJOR"));
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,{name}");
    println!("cargo::rerun-if-changed=build.rs");
}
