//! nginx as a reverse proxy, the baseline of `default`, `edge` and `shm`: keep-alive connections to the
//! handler, no access log, as many workers as the gateway has threads.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{fs, io};

use nearpath_testkit::lab::LabNode;
use tempfile::TempDir;

use super::{PeerProcess, count_cores, free_addr, search_program};

/// A running nginx with its folder.
pub(crate) struct NginxServer {
    pub(crate) peer: PeerProcess, // before the folder: it ends first
    _folder: TempDir,
}

impl NginxServer {
    /// Starts nginx in front of `handler` for all paths below `location`.
    pub(crate) async fn start(
        handler: SocketAddr,
        workers: usize,
        location: &str,
    ) -> io::Result<Self> {
        let (folder, addr) = (tempfile::tempdir()?, free_addr()?);
        let servers = proxy_config(addr, handler, location);
        let command = nginx_command(folder.path(), workers, &servers)?;
        Ok(Self {
            peer: PeerProcess::start(command, addr).await?,
            _folder: folder,
        })
    }

    /// Starts nginx on a machine of the lab with these servers and upstreams, and waits until `addr`
    /// accepts connections there.
    pub(crate) async fn start_on(
        node: &LabNode,
        servers: &str,
        addr: SocketAddr,
    ) -> io::Result<Self> {
        let folder = tempfile::tempdir()?;
        let command = nginx_command(folder.path(), count_cores(), servers)?;
        Ok(Self {
            peer: PeerProcess::start_on(node, command, addr).await?,
            _folder: folder,
        })
    }
}

/// Writes the configuration into `folder`, and returns the command that uses it.
fn nginx_command(folder: &Path, workers: usize, servers: &str) -> io::Result<Command> {
    let path = folder.join("nginx.conf");
    fs::write(&path, nginx_config(folder, workers, servers))?;
    let mut command = Command::new(find_nginx()?);
    command.arg("-c").arg(&path).arg("-p").arg(folder);
    command.args(["-e", "stderr"]);
    Ok(command)
}

/// Finds nginx, which Debian installs outside of a user's PATH.
fn find_nginx() -> io::Result<PathBuf> {
    let found = search_program("nginx", &["/usr/sbin", "/usr/local/sbin"]);
    found.ok_or_else(|| io::Error::other("nginx is missing: run apt-get install nginx-light"))
}

fn nginx_config(folder: &Path, workers: usize, servers: &str) -> String {
    let user = if rustix::process::geteuid().is_root() {
        // As root, nginx would switch to an unprivileged user, which cannot enter the temporary
        // folder.
        "user root;"
    } else {
        ""
    };
    let folder = folder.display();
    format!(
        "{user}
daemon off;
worker_processes {workers};
pid {folder}/nginx.pid;
error_log stderr error;
events {{ worker_connections 4096; }}
http {{
  access_log off;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  keepalive_requests 1000000000;
  tcp_nodelay on;
{servers}
}}
"
    )
}

fn proxy_config(listen: SocketAddr, handler: SocketAddr, location: &str) -> String {
    format!(
        "  upstream handler {{
    server {handler};
    keepalive 512;
    keepalive_requests 1000000000;
  }}
  server {{
    listen {listen} backlog=4096 reuseport;
    location {location} {{
      proxy_pass http://handler/;
      proxy_http_version 1.1;
      proxy_set_header Connection \"\";
      proxy_set_header Host $host;
      proxy_set_header X-Forwarded-For $remote_addr;
    }}
  }}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_has_all_settings() {
        let addr = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let text = nginx_config(
            Path::new("/tmp/x"),
            3,
            &proxy_config(addr(1), addr(2), "/f"),
        );
        for line in [
            "worker_processes 3;",
            "listen 127.0.0.1:1 ",
            "server 127.0.0.1:2;",
            "location /f {",
            "access_log off;",
        ] {
            assert!(text.contains(line), "{line} is missing:\n{text}");
        }
        assert_eq!(text.matches('{').count(), text.matches('}').count());
    }
}
