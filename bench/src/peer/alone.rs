//! A running nearpath with one function that belongs to no chain: the gateway reaches it over the network alone.

use std::io;
use std::net::SocketAddr;

use tempfile::TempDir;

use super::chain;
use super::house::House;

/// Ends when it is dropped.
pub(crate) struct Alone {
    house: House,
    _folder: TempDir,
}

impl Alone {
    /// Where the function is.
    pub(crate) const PATH: &str = "/function/alone";

    /// Starts it with further options of `nearpath up`, and waits until the function is ready.
    pub(crate) async fn start(options: &[&str]) -> io::Result<Self> {
        let folder = tempfile::tempdir()?;
        let mut spec = chain::function(&chain::program(folder.path())?, "", "alone", None, "");
        if let Some(spec) = spec.as_object_mut() {
            spec.remove("annotations");
        }
        let options = options.iter().map(ToString::to_string).collect();
        let house = House::start_with(folder.path(), options).await?;
        house.deploy(&spec).await?;
        house.until_available("alone", 1).await?;
        Ok(Self { house, _folder: folder })
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        self.house.addr()
    }

    /// The process whose family everything is.
    pub(crate) fn pid(&self) -> u32 {
        self.house.pid()
    }
}
