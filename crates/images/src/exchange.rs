//! HTTP requests to registries with limits: 4 MiB per response, three redirects, one open connection per host.
//!
//! Invariant: an `Authorization` header goes only to the host that it is for; a redirect to another host drops it.

use std::{collections::HashMap, sync::Arc, time::Duration};

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{
    HeaderMap, HeaderValue, Request, StatusCode, Uri,
    header::{self, HeaderName},
};
use http_body_util::{BodyExt, Empty, LengthLimitError, Limited};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;

use crate::{
    dial::{Dial, Dialing},
    error::AskError,
    settings::{Settings, is_loopback, split},
};

/// The maximum size of a response body.
pub(crate) const MOST_BYTES: usize = 4 * 1024 * 1024;
/// The maximum number of redirects.
pub(crate) const MOST_REDIRECTS: usize = 3;
/// The pause after a status 429 without `Retry-After`.
const USUAL_RETRY: Duration = Duration::from_secs(30);
/// The maximum pause after a status 429.
const LONGEST_RETRY: Duration = Duration::from_secs(3600);

/// The host of a request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Origin {
    /// The host with port, as in a URL.
    pub(crate) host: String,
    /// Whether to use HTTP without TLS.
    pub(crate) plain: bool,
}

/// A complete response.
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

/// The requests about one image, with their open connections.
pub(crate) struct Exchange<'a> {
    dial: Arc<dyn Dial>,
    settings: &'a Settings,
    /// Whether the registry is on this machine; only then may redirects lead to loopback addresses too.
    loopback: bool,
    open: HashMap<Origin, SendRequest<Empty<Bytes>>>,
}

impl<'a> Exchange<'a> {
    /// Creates the exchange for a registry.
    pub(crate) fn new(dial: Arc<dyn Dial>, settings: &'a Settings, registry: &str) -> Self {
        Exchange {
            dial,
            settings,
            loopback: is_loopback(registry),
            open: HashMap::new(),
        }
    }

    /// Sends a GET request and follows redirects. Every other status is a response.
    pub(crate) async fn get(
        &mut self,
        origin: &Origin,
        target: &str,
        accept: &str,
        authorization: Option<&HeaderValue>,
    ) -> Result<Answer, AskError> {
        let (mut at, mut path) = (origin.clone(), target.to_owned());
        for _ in 0..=MOST_REDIRECTS {
            // Compared for each hop: a redirect back to the first host gets the header again.
            let authorization = authorization.filter(|_| at == *origin);
            let answer = self.once(&at, &path, accept, authorization).await?;
            let moved = matches!(answer.status.as_u16(), 301 | 302 | 303 | 307 | 308);
            let Some(location) = answer.headers.get(header::LOCATION).filter(|_| moved) else {
                return Ok(answer);
            };
            (at, path) = self.next(&at, location)?;
        }
        Err(AskError::Redirects {
            host: origin.host.clone(),
            limit: MOST_REDIRECTS,
        })
    }

    /// Parses an absolute URL and returns its host and path, if the settings allow a redirect or a token request to it.
    pub(crate) fn place(&self, from: &Origin, url: &str) -> Result<(Origin, String), AskError> {
        let unexpected = |what: String| AskError::Unexpected {
            host: from.host.clone(),
            what,
        };
        let uri: Uri = url
            .parse()
            .map_err(|_| unexpected(format!("with {url:?}, which is no URL")))?;
        let plain = match uri.scheme_str() {
            Some("https") => false,
            Some("http") => true,
            _ => return Err(unexpected(format!("with {url:?}, which is no URL of HTTP"))),
        };
        let authority = uri.authority().map(|authority| authority.as_str());
        let host = authority
            // A URL with user and password is refused: its host could be misread.
            .filter(|host| !host.contains('@'))
            .unwrap_or_default();
        if host.is_empty() {
            return Err(unexpected(format!("with {url:?}, which names no host")));
        }
        // A redirect must not lead credentials or manifests away from TLS.
        if plain && !self.settings.is_plain(host) {
            return Err(unexpected(format!("with {url:?}, which is without TLS")));
        }
        let target = uri.path_and_query().map_or("/", |target| target.as_str());
        let origin = Origin {
            host: host.to_owned(),
            plain,
        };
        Ok((origin, target.to_owned()))
    }

    fn next(&self, at: &Origin, location: &HeaderValue) -> Result<(Origin, String), AskError> {
        let location = location.to_str().unwrap_or_default();
        if location.starts_with('/') && !location.starts_with("//") {
            Ok((at.clone(), location.to_owned()))
        } else {
            self.place(at, location)
        }
    }

    async fn once(
        &mut self,
        at: &Origin,
        target: &str,
        accept: &str,
        authorization: Option<&HeaderValue>,
    ) -> Result<Answer, AskError> {
        let request = request(at, target, accept, authorization)?;
        let mut sender = self.sender(at).await?;
        let broken = |why: String| AskError::Unreachable {
            host: at.host.clone(),
            why,
        };
        let response = sender
            .send_request(request)
            .await
            .map_err(|error| broken(error.to_string()))?;
        let (head, body) = response.into_parts();
        let body = Limited::new(body, MOST_BYTES).collect().await;
        let body = body.map_err(|error| {
            if error.is::<LengthLimitError>() {
                AskError::TooLong {
                    host: at.host.clone(),
                    limit: MOST_BYTES,
                }
            } else {
                broken(error.to_string())
            }
        })?;
        // Only after the whole body was read; an unread body would be taken for the next response.
        self.open.insert(at.clone(), sender);
        if head.status == StatusCode::TOO_MANY_REQUESTS {
            return Err(AskError::TooMany {
                host: at.host.clone(),
                retry_after: retry_after(&head.headers),
            });
        }
        Ok(Answer {
            status: head.status,
            headers: head.headers,
            body: body.to_bytes(),
        })
    }

    /// Returns the open connection to a host, or opens one.
    fn sender<'s>(
        &'s mut self,
        at: &'s Origin,
    ) -> BoxFuture<'s, Result<SendRequest<Empty<Bytes>>, AskError>> {
        Box::pin(async move {
            if let Some(mut sender) = self.open.remove(at)
                && sender.ready().await.is_ok()
            {
                return Ok(sender);
            }
            let (host, port) = split(&at.host, if at.plain { 80 } else { 443 });
            let to = Dialing {
                host: host.to_owned(),
                port,
                tls: !at.plain,
                loopback: self.loopback || self.settings.hosts.contains(&at.host),
            };
            let stream = self.dial.dial(to).await?;
            let (sender, connection) =
                http1::handshake(TokioIo::new(stream))
                    .await
                    .map_err(|error| AskError::Unreachable {
                        host: at.host.clone(),
                        why: error.to_string(),
                    })?;
            // The task ends when the sender is dropped, and the caller's time limit for the whole request ensures that.
            tokio::spawn(connection);
            Ok(sender)
        })
    }
}

fn request(
    at: &Origin,
    target: &str,
    accept: &str,
    authorization: Option<&HeaderValue>,
) -> Result<Request<Empty<Bytes>>, AskError> {
    let mut request = Request::get(target)
        .header(header::HOST, &at.host)
        .header(header::ACCEPT, accept)
        .header(
            header::USER_AGENT,
            concat!("mullion/", env!("CARGO_PKG_VERSION")),
        );
    if let Some(value) = authorization {
        request = request.header(header::AUTHORIZATION, value);
    }
    request
        .body(Empty::new())
        .map_err(|error| AskError::Unexpected {
            host: at.host.clone(),
            what: format!("with a path that cannot be asked for: {error}"),
        })
}

/// Returns the pause that a registry asks for: seconds, or the difference of the date in `Retry-After` to the response's own `Date`, so
/// that this machine's clock does not matter.
fn retry_after(headers: &HeaderMap) -> Duration {
    let text = |name: HeaderName| Some(headers.get(name)?.to_str().ok()?.trim());
    let date = |name: HeaderName| httpdate::parse_http_date(text(name)?).ok();
    let seconds = || text(header::RETRY_AFTER)?.parse().ok();
    let until_date = || {
        let (end, now) = (date(header::RETRY_AFTER)?, date(header::DATE)?);
        Some(end.duration_since(now).unwrap_or_default())
    };
    let wait = seconds().map(Duration::from_secs).or_else(until_date);
    wait.unwrap_or(USUAL_RETRY).min(LONGEST_RETRY)
}
