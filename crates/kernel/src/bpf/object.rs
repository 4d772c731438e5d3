//! Compiled programs: where they are, how they are loaded, what an error of the loader says.

use std::io;
use std::sync::{LazyLock, Mutex, PoisonError};

use aya::{Ebpf, EbpfLoader};

/// Loads without the kernel's own types, which no program of ours asks for: aya would read all of them each time.
pub(super) fn load(object: &[u8]) -> Result<Ebpf, aya::EbpfError> {
    static LOADER: LazyLock<Mutex<EbpfLoader<'static>>> = LazyLock::new(|| {
        let mut loader = EbpfLoader::new();
        loader.btf(None);
        Mutex::new(loader)
    });
    LOADER.lock().unwrap_or_else(PoisonError::into_inner).load(object)
}

/// An error of aya's with its causes; one of the kernel's keeps its kind, so that `EPERM` can be told apart.
pub(super) fn refused(error: &(dyn std::error::Error + 'static)) -> io::Error {
    let mut text = error.to_string();
    let mut kind = io::ErrorKind::Other;
    let mut cause = error.source();
    while let Some(inner) = cause {
        text = format!("{text}: {inner}");
        kind = inner.downcast_ref::<io::Error>().map_or(kind, io::Error::kind);
        cause = inner.source();
    }
    if kind == io::ErrorKind::PermissionDenied {
        text.push_str("; run as root, or with CAP_BPF, CAP_NET_ADMIN and CAP_SYS_ADMIN");
    }
    io::Error::new(kind, text)
}

/// `bpf/sk_msg.c`.
#[cfg(nearpath_bpf)]
pub(super) fn sk_msg() -> io::Result<&'static [u8]> {
    Ok(aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/sk_msg.o")))
}

/// `bpf/sock_fence.c`.
#[cfg(nearpath_bpf)]
pub(super) fn sock_fence() -> io::Result<&'static [u8]> {
    Ok(aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/sock_fence.o")))
}

/// `bpf/sock_window.c`.
#[cfg(nearpath_bpf)]
pub(super) fn sock_window() -> io::Result<&'static [u8]> {
    Ok(aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/sock_window.o")))
}

/// `bpf/tc_forward.c`.
#[cfg(nearpath_bpf)]
pub(super) fn tc_forward() -> io::Result<&'static [u8]> {
    Ok(aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/tc_forward.o")))
}

#[cfg(not(nearpath_bpf))]
pub(super) use missing as sk_msg;
#[cfg(not(nearpath_bpf))]
pub(super) use missing as sock_fence;
#[cfg(not(nearpath_bpf))]
pub(super) use missing as sock_window;
#[cfg(not(nearpath_bpf))]
pub(super) use missing as tc_forward;

#[cfg(not(nearpath_bpf))]
pub(super) fn missing() -> io::Result<&'static [u8]> {
    let why = "this nearpath was built without BPF programs: install clang and build again";
    Err(io::Error::new(io::ErrorKind::Unsupported, why))
}
