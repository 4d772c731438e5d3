//! Configurations of nginx on machines with TLS between them.
//!
//! The server shows a certificate, which the client verifies. The client shows none, so a new
//! connection costs nginx less than one between nodes, where both sides show one.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use tempfile::TempDir;

/// Name in the certificate of all servers.
const SERVER_NAME: &str = "bench.nearpath";

/// A certificate with its key, of all servers of a comparison.
pub(crate) struct TlsFiles {
    folder: TempDir,
}

/// Connections to another machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TlsConnections {
    /// TLS 1.3 connections that serve any number of requests.
    Kept,
    /// A new TLS 1.3 connection for each request, with a full handshake.
    New13,
    /// The same with TLS 1.2.
    New12,
}

impl TlsFiles {
    /// Creates a certificate with a key of P-256, as nodes have.
    ///
    /// # Errors
    /// When the files cannot be written.
    pub(crate) fn create() -> io::Result<Self> {
        let files = Self {
            folder: tempfile::tempdir()?,
        };
        let created = rcgen::generate_simple_self_signed([SERVER_NAME.to_owned()]);
        let created = created.map_err(io::Error::other)?;
        std::fs::write(files.certificate(), created.cert.pem())?;
        std::fs::write(files.key(), created.signing_key.serialize_pem())?;
        Ok(files)
    }

    fn certificate(&self) -> PathBuf {
        self.folder.path().join("server.crt")
    }

    fn key(&self) -> PathBuf {
        self.folder.path().join("server.key")
    }

    /// Returns a server with TLS.
    pub(crate) fn tls_server(&self, listen: SocketAddr, locations: &str) -> String {
        let (certificate, key) = (self.certificate(), self.key());
        format!(
            "  server {{
    listen {listen} ssl backlog=4096 reuseport;
    ssl_certificate {};
    ssl_certificate_key {};
    ssl_protocols TLSv1.2 TLSv1.3;
    client_max_body_size 64m;
{locations}  }}
",
            certificate.display(),
            key.display()
        )
    }

    /// Returns a location whose requests go to another machine, at `target` with the same path.
    pub(crate) fn tls_location(
        &self,
        path: &str,
        target: &str,
        connections: TlsConnections,
    ) -> String {
        let certificate = self.certificate();
        let (version, field, reuse) = match connections {
            TlsConnections::Kept => ("TLSv1.3", "", "on"),
            TlsConnections::New13 => ("TLSv1.3", "close", "off"),
            TlsConnections::New12 => ("TLSv1.2", "close", "off"),
        };
        let certificate = certificate.display();
        format!(
            "    location {path} {{
      proxy_pass https://{target};
      proxy_ssl_name {SERVER_NAME};
      proxy_ssl_verify on;
      proxy_ssl_trusted_certificate {certificate};
      proxy_ssl_protocols {version};
      proxy_ssl_session_reuse {reuse};
{}    }}
",
            common_fields(field)
        )
    }
}

/// Returns a server without TLS.
pub(crate) fn plain_server(listen: SocketAddr, locations: &str) -> String {
    format!(
        "  server {{
    listen {listen} backlog=4096 reuseport;
    client_max_body_size 64m;
{locations}  }}
"
    )
}

/// Returns a group of servers with kept connections.
pub(crate) fn upstream(name: &str, addr: SocketAddr) -> String {
    format!(
        "  upstream {name} {{
    server {addr};
    keepalive 512;
    keepalive_requests 1000000000;
  }}
"
    )
}

/// Returns the locations of a function: all its paths go to an upstream of its own, without the
/// function's name.
pub(crate) fn function_locations(function: &str, upstream: &str) -> String {
    ["= ", ""]
        .map(|exact| {
            let end = if exact.is_empty() { "/" } else { "" };
            format!(
                "    location {exact}/function/{function}{end} {{
      proxy_pass http://{upstream}/;
{}    }}
",
                common_fields("")
            )
        })
        .concat()
}

fn common_fields(connection: &str) -> String {
    format!(
        "      proxy_http_version 1.1;
      proxy_set_header Connection \"{connection}\";
      proxy_set_header Host $host;
      proxy_set_header X-Forwarded-For $remote_addr;
"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_connections_share_nothing() {
        let files = TlsFiles::create().unwrap();
        let text = files.tls_location("/", "10.78.0.2:8443", TlsConnections::New12);
        for line in [
            "proxy_pass https://10.78.0.2:8443;",
            "proxy_ssl_protocols TLSv1.2;",
            "proxy_ssl_session_reuse off;",
            "proxy_ssl_verify on;",
            "Connection \"close\";",
        ] {
            assert!(text.contains(line), "{line} is missing:\n{text}");
        }
    }

    #[test]
    fn a_function_has_two_locations() {
        let text = function_locations("echo", "one");
        assert!(text.contains("location = /function/echo {"), "{text}");
        assert!(text.contains("location /function/echo/ {"), "{text}");
        assert_eq!(text.matches('{').count(), text.matches('}').count());
    }
}
