//! TUN devices: IP packets of a network namespace, read and written by a program (`Documentation/networking/tuntap.rst`).
//!
//! Each packet has a header of [`HEADER`] octets before it (`struct virtio_net_hdr`) that says which part of its checksum is
//! still to be made and how it is to be cut into segments. What was read from one device, header included, may be written to
//! another: then neither is ever done for packets that stay on this machine.
#![expect(unsafe_code, reason = "the requests of the TUN driver are ioctls, which no safe library here wraps")]

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;

use rustix::ioctl::{IntegerSetter, Updater, ioctl, opcode};

/// The length of the header before each packet.
pub const HEADER: usize = 10;
/// The longest packet with its header that a device hands out.
pub const LONGEST: usize = HEADER + 65_535;

const SET_DEVICE: rustix::ioctl::Opcode = opcode::write::<i32>(b'T', 202); // TUNSETIFF
const SET_OFFLOAD: rustix::ioctl::Opcode = opcode::write::<u32>(b'T', 208); // TUNSETOFFLOAD
/// Packets without a gap to fill in before the address (`IFF_NO_PI`), with the header (`IFF_VNET_HDR`), of IP (`IFF_TUN`).
#[expect(clippy::cast_possible_truncation, reason = "the three flags are in the low 16 bits, as the field is")]
const KIND: i16 = (libc::IFF_TUN | libc::IFF_NO_PI | libc::IFF_VNET_HDR) as i16;

/// What a device may hand out unfinished. Linux cuts such packets itself where they must go elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Offload {
    /// Checksums not yet made; every packet within the device's MTU.
    Checksums,
    /// In addition up to 64 KB of TCP or UDP segments in one piece, which are cut at their receiver or not at all.
    Segments,
}

/// One device; it goes when this is dropped.
#[derive(Debug)]
pub struct Tun(File);

/// `struct ifreq`, as `TUNSETIFF` reads and writes it.
#[repr(C)]
struct Request {
    name: [u8; 16],
    flags: i16,
    rest: [u8; 22],
}

impl Tun {
    /// Makes a device in the calling thread's network namespace; it is down and has no address. Reading and writing never wait.
    ///
    /// # Errors
    /// Without `CAP_NET_ADMIN` there, without `/dev/net/tun`, or when `name` has more than 15 octets or is in use.
    pub fn create(name: &str, offload: Offload) -> io::Result<Self> {
        let flags = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
        let file = OpenOptions::new().read(true).write(true).custom_flags(flags).open("/dev/net/tun")?;
        let mut request = Request { name: terminated(name)?, flags: KIND, rest: [0; 22] };
        // SAFETY: TUNSETIFF reads and writes one `struct ifreq`, 40 octets on every 64-bit Linux, which `Request` is; all bit
        // patterns of its fields are valid.
        unsafe { ioctl(&file, Updater::<SET_DEVICE, Request>::new(&mut request)) }?;
        let tun = Self(file);
        tun.offload(offload)?;
        Ok(tun)
    }

    /// Sets what packets handed out from now on may lack.
    ///
    /// # Errors
    /// Before Linux 6.2, which cannot leave UDP segments together.
    pub fn offload(&self, offload: Offload) -> io::Result<()> {
        let segments = libc::TUN_F_TSO4 | libc::TUN_F_TSO6 | libc::TUN_F_TSO_ECN | libc::TUN_F_USO4 | libc::TUN_F_USO6;
        let flags = match offload {
            Offload::Checksums => libc::TUN_F_CSUM,
            Offload::Segments => libc::TUN_F_CSUM | segments,
        };
        // SAFETY: the argument of TUNSETOFFLOAD is a number; the kernel reads and writes no memory.
        unsafe { ioctl(&self.0, IntegerSetter::<SET_OFFLOAD>::new_usize(flags as usize)) }?;
        Ok(())
    }

    /// Takes the next packet, header first, into `buffer`, which should have [`LONGEST`] octets; `None`: there is none now.
    ///
    /// # Errors
    /// When the device is gone.
    pub fn read(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        match rustix::io::read(&self.0, buffer) {
            Ok(length) => Ok(Some(length)),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Gives a packet, header first, to the namespace: its stack has dealt with it when this returns.
    ///
    /// # Errors
    /// When the device is down or gone, or the packet is none.
    pub fn write(&self, packet: &[u8]) -> io::Result<()> {
        rustix::io::write(&self.0, packet)?;
        Ok(())
    }
}

impl AsFd for Tun {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn terminated(name: &str) -> io::Result<[u8; 16]> {
    let fits = !name.is_empty() && name.len() < 16;
    let mut field = [0; 16];
    if !fits {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("{name:?}: a device's name has 1 to 15 octets"),
        ));
    }
    field[..name.len()].copy_from_slice(name.as_bytes());
    Ok(field)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_request_is_as_large_as_the_kernels() {
        assert_eq!(size_of::<Request>(), size_of::<libc::ifreq>());
        assert_eq!((SET_DEVICE, SET_OFFLOAD), (0x4004_54ca, 0x4004_54d0), "linux/if_tun.h");
    }

    #[test]
    fn names_that_are_too_long_are_refused() {
        assert!(terminated("fifteen-octets-").is_ok());
        assert!(terminated("sixteen-octets--").is_err());
        assert!(terminated("").is_err());
    }
}
