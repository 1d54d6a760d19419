//! TLS: whose certificates are trusted, and which one is shown.

use std::error::Error;
use std::io;
use std::sync::Arc;

use redis::{
    Client, ClientTlsConfig, ConnectionAddr, ConnectionInfo, ErrorKind, RedisError, RedisResult, TlsCertificates,
};
use rustls::crypto::{CryptoProvider, ring};
use timertask_core::seam::StoreErrorKind;

use crate::options::Options;

/// Certificates as `Options` takes them, in PEM.
#[derive(Clone, Default)]
pub(crate) struct Certificates {
    /// `None`: those that the system trusts.
    pub(crate) roots: Option<Vec<u8>>,
    /// The client's own certificates and their key.
    pub(crate) own: Option<(Vec<u8>, Vec<u8>)>,
}

/// A client of the server in `info`, which looks at its certificate where it is spoken to by TLS.
pub(crate) fn client(info: ConnectionInfo, options: &Options) -> RedisResult<Client> {
    let ConnectionAddr::TcpTls { insecure, .. } = info.addr() else { return Client::open(info) };
    if *insecure {
        return Err(RedisError::from((ErrorKind::InvalidClientConfig, "'#insecure' is not supported")));
    }
    if CryptoProvider::get_default().is_none() {
        // Where two threads come here at once one of them fails, and the provider is there all the same.
        let _ = ring::default_provider().install_default();
    }
    let Certificates { roots, own } = options.certificates.clone();
    let own = own.map(|(client_cert, client_key)| ClientTlsConfig { client_cert, client_key });
    Client::build_with_tls(info, TlsCertificates { client_tls: own, root_cert: roots })
}

/// What a handshake came to that found no trust; `None` where it is something else. Nothing had been asked then.
pub(crate) fn distrust(error: &RedisError) -> Option<StoreErrorKind> {
    use rustls::AlertDescription as Alert;
    // The client library keeps what the socket came to behind a pointer, and rustls what it says inside of that.
    let cause = error.source()?.downcast_ref::<Arc<dyn Error + Send + Sync>>()?;
    let found = cause.downcast_ref::<io::Error>()?.get_ref()?.downcast_ref::<rustls::Error>()?;
    match found {
        // We refuse the server's certificate.
        rustls::Error::InvalidCertificate(_) => Some(StoreErrorKind::Misconfigured),
        // The server refuses ours, or misses it.
        rustls::Error::AlertReceived(
            Alert::BadCertificate
            | Alert::UnsupportedCertificate
            | Alert::CertificateRevoked
            | Alert::CertificateExpired
            | Alert::CertificateUnknown
            | Alert::UnknownCA
            | Alert::AccessDenied
            | Alert::CertificateRequired,
        ) => Some(StoreErrorKind::Auth),
        _ => None,
    }
}
