//! The gateway that a command talks to, and the credentials for it.

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use http::Uri;
use ureq::tls::TlsConfig;

use super::tls;
use crate::data_dir::default_data_dir;
use crate::exit::{CommandError, ExitStatus};
use crate::gateway_args::GatewayArgs;

/// The gateway's address if nothing names another.
pub(crate) const DEFAULT_GATEWAY: &str = "http://127.0.0.1:8080";

/// A gateway and the credentials for it.
#[derive(Clone)]
pub(crate) struct GatewayTarget {
    /// `http://HOST:PORT` or `https://HOST:PORT`, and perhaps a path, without a slash at its end.
    pub(crate) base: String,
    /// The gateway is on this machine.
    pub(crate) is_local: bool,
    /// TLS of an `https://` address.
    pub(crate) tls: Option<TlsConfig>,
    /// User and password.
    pub(crate) credentials: Option<(String, String)>,
    /// Source of the credentials, or the places searched for them: for the text of a 401.
    pub(crate) credential_origin: String,
}

impl GatewayTarget {
    /// Chooses among `--gateway`, `$OPENFAAS_URL`, the stack file's `provider.gateway` and the
    /// default, in this order.
    pub(crate) fn from_args(
        args: &GatewayArgs,
        stack_gateway: Option<&str>,
    ) -> Result<Self, CommandError> {
        let from_env = std::env::var("OPENFAAS_URL")
            .ok()
            .filter(|url| !url.trim().is_empty());
        let typed = args.gateway.clone().or(from_env);
        let base = typed
            .or_else(|| stack_gateway.map(str::to_owned))
            .unwrap_or_else(|| DEFAULT_GATEWAY.to_owned());
        let (base, is_local) = check_url(&base)?;
        let tls = match base.starts_with("https:") {
            true => Some(tls::config_from_args(args)?),
            false => None,
        };
        // After the address: the local password is looked up for local gateways only.
        let (credentials, credential_origin) = find_credentials(args, is_local)?;
        Ok(Self {
            base,
            is_local,
            tls,
            credentials,
            credential_origin,
        })
    }
}

fn check_url(url: &str) -> Result<(String, bool), CommandError> {
    let base = url.trim().trim_end_matches('/').to_owned();
    let fail = |why: &str| {
        Err(CommandError::new(
            ExitStatus::Usage,
            format!("invalid gateway address {url:?}: {why}"),
        ))
    };
    let Ok(uri) = base.parse::<Uri>() else {
        return fail("expected http://HOST:PORT or https://HOST:PORT");
    };
    if !matches!(uri.scheme_str(), Some("http" | "https")) {
        return fail("expected http://HOST:PORT or https://HOST:PORT");
    }
    // Credentials in a URL would show in process lists and error texts.
    if uri.query().is_some()
        || uri
            .authority()
            .is_some_and(|authority| authority.as_str().contains('@'))
    {
        return fail(
            "expected http://HOST:PORT; pass credentials with --username and --password-file",
        );
    }
    Ok((base, uri.host().is_some_and(is_loopback_host)))
}

fn is_loopback_host(host: &str) -> bool {
    let ip = host
        .trim_start_matches('[')
        .trim_end_matches(']')
        .parse::<IpAddr>();
    // Other names are not resolved: the answer could differ when the connection is made.
    host == "localhost" || ip.is_ok_and(|ip| ip.is_loopback())
}

/// Credentials, if any, and the text on their origin.
type FoundCredentials = (Option<(String, String)>, String);

/// Searches `--password-file`, `$NEARPATH_PASSWORD` and, for a gateway on this machine, the files
/// of `nearpath up`.
fn find_credentials(args: &GatewayArgs, is_local: bool) -> Result<FoundCredentials, CommandError> {
    let user = || args.username.clone().unwrap_or_else(|| "admin".to_owned());
    if let Some(file) = &args.password_file {
        let fail = |error| {
            CommandError::new(
                ExitStatus::Failed,
                format!("password file {}: {error}", file.display()),
            )
        };
        let password = read_first_line(file).map_err(fail)?;
        return Ok((
            Some((user(), password)),
            format!("the password in {}", file.display()),
        ));
    }
    if let Some(password) = std::env::var("NEARPATH_PASSWORD")
        .ok()
        .filter(|password| !password.is_empty())
    {
        return Ok((Some((user(), password)), "$NEARPATH_PASSWORD".to_owned()));
    }
    // The local password is never sent to another machine.
    match is_local {
        true => Ok(generated_credentials(
            &default_data_dir(),
            args.username.clone(),
        )),
        false => Ok((
            None,
            "no password: use --password-file or NEARPATH_PASSWORD".to_owned(),
        )),
    }
}

fn generated_credentials(data_dir: &Path, username: Option<String>) -> FoundCredentials {
    let file: PathBuf = data_dir.join("basic-auth-password");
    match read_first_line(&file) {
        Ok(password) => {
            let user = username.or_else(|| read_first_line(&data_dir.join("basic-auth-user")).ok());
            let user = user.unwrap_or_else(|| "admin".to_owned());
            (
                Some((user, password)),
                format!("the password in {}", file.display()),
            )
        }
        Err(error) => {
            let advice = "use --password-file or NEARPATH_PASSWORD, or set NEARPATH_DATA_DIR to the gateway's data directory";
            (
                None,
                format!("no password: {}: {error}; {advice}", file.display()),
            )
        }
    }
}

fn read_first_line(file: &Path) -> std::io::Result<String> {
    let text = fs::read_to_string(file)?;
    // Editors and `echo` end files with a newline, which is no part of a password.
    Ok(text.lines().next().unwrap_or_default().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_checked() {
        assert_eq!(
            check_url("http://127.0.0.1:8080/").unwrap(),
            ("http://127.0.0.1:8080".to_owned(), true)
        );
        assert_eq!(check_url("http://[::1]:80").map(|c| c.1), Ok(true));
        assert_eq!(check_url("https://localhost").map(|c| c.1), Ok(true));
        assert_eq!(
            check_url("http://gw.example/base/").unwrap(),
            ("http://gw.example/base".to_owned(), false)
        );
        for bad in [
            "",
            "gw:8080",
            "ftp://x",
            "http://u:p@x",
            "http://x?y=1",
            "http://",
        ] {
            assert_eq!(check_url(bad).unwrap_err().exit, ExitStatus::Usage, "{bad}");
        }
    }
}
