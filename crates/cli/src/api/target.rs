//! Which gateway is asked, and with which credentials.

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use http::Uri;

use crate::args::Connection;
use crate::data_dir::default_data_dir;
use crate::exit::{Exit, Failure};

/// Where the gateway is when nobody says otherwise.
pub(crate) const DEFAULT_GATEWAY: &str = "http://127.0.0.1:8080";

/// A gateway and the credentials for it.
#[derive(Clone)]
pub(crate) struct Target {
    /// `http://HOST:PORT` and perhaps a path, without a slash at its end.
    pub(crate) base: String,
    /// Whether it is on this machine.
    pub(crate) local: bool,
    /// User and password.
    pub(crate) credentials: Option<(String, String)>,
    /// Where the credentials come from, or where they were looked for: for the text of a refusal.
    pub(crate) origin: String,
}

impl Target {
    /// Decides: `--gateway`, `$OPENFAAS_URL`, the stack file's `provider.gateway`, the default.
    pub(crate) fn of(connection: &Connection, stack: Option<&str>) -> Result<Self, Failure> {
        let from_env = std::env::var("OPENFAAS_URL").ok().filter(|url| !url.trim().is_empty());
        let typed = connection.gateway.clone().or(from_env);
        let base = typed.or_else(|| stack.map(str::to_owned)).unwrap_or_else(|| DEFAULT_GATEWAY.to_owned());
        let (base, local) = check(&base)?;
        let (credentials, origin) = credentials(connection, local)?;
        Ok(Self { base, local, credentials, origin })
    }
}

fn check(url: &str) -> Result<(String, bool), Failure> {
    let base = url.trim().trim_end_matches('/').to_owned();
    let fail = |why: &str| Err(Failure::new(Exit::Usage, format!("invalid gateway address {url:?}: {why}")));
    let Ok(uri) = base.parse::<Uri>() else { return fail("write http://HOST:PORT") };
    match uri.scheme_str() {
        Some("http") => {}
        Some("https") => {
            return fail("this version speaks http only; put a tunnel such as `ssh -L` before a remote gateway");
        }
        _ => return fail("write http://HOST:PORT"),
    }
    if uri.query().is_some() || uri.authority().is_some_and(|authority| authority.as_str().contains('@')) {
        return fail("write http://HOST:PORT; credentials go to --username and --password-file");
    }
    Ok((base, uri.host().is_some_and(is_local)))
}

fn is_local(host: &str) -> bool {
    let ip = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    host == "localhost" || ip.is_ok_and(|ip| ip.is_loopback())
}

type Found = (Option<(String, String)>, String);

/// `--password-file`, `$NEARPATH_PASSWORD`, and for a gateway on this machine what `nearpath up` wrote. A local password
/// is never sent to another machine.
fn credentials(connection: &Connection, local: bool) -> Result<Found, Failure> {
    let user = || connection.username.clone().unwrap_or_else(|| "admin".to_owned());
    if let Some(file) = &connection.password_file {
        let fail = |error| Failure::new(Exit::Failed, format!("password file {}: {error}", file.display()));
        let password = first_line(file).map_err(fail)?;
        return Ok((Some((user(), password)), format!("the password in {}", file.display())));
    }
    if let Some(password) = std::env::var("NEARPATH_PASSWORD").ok().filter(|password| !password.is_empty()) {
        return Ok((Some((user(), password)), "$NEARPATH_PASSWORD".to_owned()));
    }
    match local {
        true => Ok(generated(&default_data_dir(), connection.username.clone())),
        false => Ok((None, "no password: give --password-file or set NEARPATH_PASSWORD".to_owned())),
    }
}

fn generated(data_dir: &Path, username: Option<String>) -> Found {
    let file: PathBuf = data_dir.join("basic-auth-password");
    match first_line(&file) {
        Ok(password) => {
            let user = username.or_else(|| first_line(&data_dir.join("basic-auth-user")).ok());
            let user = user.unwrap_or_else(|| "admin".to_owned());
            (Some((user, password)), format!("the password in {}", file.display()))
        }
        Err(error) => {
            let advice =
                "give --password-file, set NEARPATH_PASSWORD, or NEARPATH_DATA_DIR to the gateway's data directory";
            (None, format!("no password: {}: {error}; {advice}", file.display()))
        }
    }
}

fn first_line(file: &Path) -> std::io::Result<String> {
    let text = fs::read_to_string(file)?;
    Ok(text.lines().next().unwrap_or_default().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        assert_eq!(check("http://127.0.0.1:8080/").unwrap(), ("http://127.0.0.1:8080".to_owned(), true));
        assert_eq!(check("http://[::1]:80").map(|c| c.1), Ok(true));
        assert_eq!(check("http://localhost").map(|c| c.1), Ok(true));
        assert_eq!(check("http://gw.example/base/").unwrap(), ("http://gw.example/base".to_owned(), false));
        for bad in ["", "gw:8080", "ftp://x", "https://x", "http://u:p@x", "http://x?y=1", "http://"] {
            assert_eq!(check(bad).unwrap_err().exit, Exit::Usage, "{bad}");
        }
    }
}
