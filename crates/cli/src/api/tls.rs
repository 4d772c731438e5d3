//! TLS of the connection to a gateway with an `https://` address.

use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use ureq::tls::{Certificate, RootCerts, TlsConfig};

use crate::exit::{CommandError, ExitStatus};
use crate::gateway_args::GatewayArgs;

/// Returns the settings for a gateway: the authorities that it trusts, or none of them with
/// `--tls-no-verify`.
pub(super) fn config_from_args(args: &GatewayArgs) -> Result<TlsConfig, CommandError> {
    let authorities = match &args.tls_ca {
        Some(file) => {
            let fail = |error| {
                let text = format!("--tls-ca {}: {error}", file.display());
                CommandError::new(ExitStatus::Usage, text)
            };
            let chain = CertificateDer::pem_file_iter(file).map_err(fail)?;
            chain.collect::<Result<Vec<_>, _>>().map_err(fail)?
        }
        None => rustls_native_certs::load_native_certs().certs,
    };
    let to_ureq = |der: &CertificateDer<'_>| Certificate::from_der(der).to_owned();
    let authorities: Vec<_> = authorities.iter().map(to_ureq).collect();
    Ok(TlsConfig::builder()
        .root_certs(RootCerts::Specific(Arc::new(authorities)))
        .disable_verification(args.tls_no_verify)
        .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .build())
}
