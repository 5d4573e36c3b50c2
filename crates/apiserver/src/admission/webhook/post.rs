//! A question to a webhook and its answer, as client-go's REST client and Go's HTTP client under it carry them.
//!
//! A response of 429 or 5xx with `Retry-After` in seconds is retried at most [`MOST_RETRIES`] times, and redirects are followed as
//! Go follows them; connections that fail are not tried again. All of it has the time of one call, and an answer [`BODY_BYTES`] bytes.

use std::{borrow::Cow, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{
    HeaderMap, Method, Request, Response, StatusCode,
    header::{ACCEPT, CONTENT_TYPE, LOCATION, REFERER, RETRY_AFTER, USER_AGENT},
};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper_util::client::legacy;
use mullion_kube_text::golang::{
    quote,
    url::{Url, UrlError},
};
use tokio::time::{Instant, sleep_until, timeout_at};

use super::{
    client::{Address, Clients, Pool, words},
    trust::ClientError,
};
use crate::{limits::BODY_BYTES, registry::Registry};

/// The largest number of retries of one call.
const MOST_RETRIES: usize = 10;
/// The largest number of requests in a chain of redirects.
const MOST_HOPS: usize = 10;
/// The number of bytes that are read of a redirect's body, so that its connection can be used again (Go: maxBodySlurpSize).
const MOST_SKIPPED: usize = 2 << 10;
/// The media types of texts.
const TEXT: &[u8] = b"text/";
/// The number of bytes of a response text that are repeated to the client.
const MOST_TEXT: usize = 2048;
const AGENT: &str = "kube-apiserver-admission";
const TOO_LATE: &str = "context deadline exceeded";

/// The error of a webhook call without a response, with the text of Go's HTTP client.
#[derive(Debug, thiserror::Error)]
pub(super) enum CallError {
    /// No HTTP client can be made for the webhook, so no request was sent.
    #[error(transparent)]
    NoClient(#[from] ClientError),
    /// A request of the call has no response. The method is that of the first request.
    #[error("Post {}: {why}", quote(.url))]
    Request {
        /// The URL of the request, without a password.
        url: String,
        /// The reason.
        why: RequestError,
    },
    /// The response cannot be read to its end, for this reason.
    #[error("unexpected error when reading response body. Please retry. Original error: {0}")]
    Unreadable(String),
    /// The response is too long.
    #[error("the answer has more than {BODY_BYTES} bytes")]
    TooLong,
    /// The webhook refuses the request; the text is that which client-go's REST client makes of the response.
    #[error("{0}")]
    Refused(String),
}

/// The reason why a request has no response.
#[derive(Debug, thiserror::Error)]
pub(super) enum RequestError {
    /// The text is not a URL.
    #[error(transparent)]
    Url(#[from] UrlError),
    /// The scheme is neither http nor https.
    #[error("unsupported protocol scheme {}", quote(.0))]
    Scheme(String),
    /// The URL has no host.
    #[error("http: no Host in request URL")]
    NoHost,
    /// The time of the call is over.
    #[error("{TOO_LATE}")]
    TooLate,
    /// The URL has no form that HTTP knows.
    #[error("the URL cannot be requested: {0}")]
    Form(http::Error),
    /// The connection fails.
    #[error("{}", words(.0))]
    Connection(legacy::Error),
    /// The response leads to a URL that cannot be parsed.
    #[error("failed to parse Location header {}: {why}", quote(.location))]
    Location {
        /// The header.
        location: String,
        /// What is wrong with the header.
        why: UrlError,
    },
    /// The responses lead on and on.
    #[error("stopped after {MOST_HOPS} redirects")]
    Redirects,
}

/// Posts a review and returns the body of the response.
pub(super) async fn post(
    clients: &Clients,
    registry: &Arc<Registry>,
    address: &Address,
    url: &str,
    body: Vec<u8>,
    timeout: Duration,
) -> Result<Bytes, CallError> {
    let client = clients.of(registry, address)?;
    let call = Call {
        client,
        // A fraction counts as a whole second.
        url: format!(
            "{url}?timeout={}s",
            timeout.as_secs() + u64::from(timeout.subsec_nanos() > 0)
        ),
        body: Bytes::from(body),
        deadline: Instant::now() + timeout,
    };
    let answer = patiently(call.deadline, || call.ask()).await?;
    if (200..=206).contains(&answer.status.as_u16()) {
        return Ok(answer.body);
    }
    Err(CallError::Refused(refusal(
        answer.status,
        answer.is_text,
        &answer.body,
    )))
}

/// A webhook's HTTP response.
struct Answer {
    status: StatusCode,
    /// The pause before the next try, if the response asks for one.
    retry_after: Option<Duration>,
    is_text: bool,
    body: Bytes,
}

/// Repeats the call while the response asks for a later retry, and returns the last response.
async fn patiently<F, E>(deadline: Instant, mut ask: impl FnMut() -> F) -> Result<Answer, E>
where
    F: Future<Output = Result<Answer, E>>,
{
    // The timer of the whole call is not reset by a retry, as in client-go, where the context carries the timeout.
    for _ in 0..MOST_RETRIES {
        let answer = ask().await?;
        let Some(wait) = answer.retry_after else {
            return Ok(answer);
        };
        let next = Instant::now().checked_add(wait);
        // Not beyond the deadline; the try that follows then fails as too late, with the error that Go gives.
        sleep_until(next.map_or(deadline, |next| next.min(deadline))).await;
    }
    ask().await
}

/// One call of a webhook, with its retries and redirects.
struct Call {
    client: Arc<Pool>,
    url: String,
    body: Bytes,
    deadline: Instant,
}

impl Call {
    /// Sends the request once and follows redirects.
    async fn ask(&self) -> Result<Answer, CallError> {
        let mut hop = Hop {
            url: Url::parse(&self.url).map_err(|why| failed(&self.url, why))?,
            method: Method::POST,
            has_body: true,
            referer: None,
        };
        for _ in 1..MOST_HOPS {
            let response = self.send(&hop).await?;
            match hop.next(&response)? {
                Some(next) => hop = next,
                None => return self.read(response).await,
            }
            let skipped = Limited::new(response.into_body(), MOST_SKIPPED).collect();
            let _ = timeout_at(self.deadline, skipped).await;
        }
        let response = self.send(&hop).await?;
        match hop.next(&response)? {
            Some(_) => {
                let location = location(&response).unwrap_or_default();
                Err(failed(location, RequestError::Redirects))
            }
            None => self.read(response).await,
        }
    }

    async fn send(&self, hop: &Hop) -> Result<Response<Incoming>, CallError> {
        let failed = |why: RequestError| failed(hop.url.redacted(), why);
        if !matches!(hop.url.scheme.as_str(), "http" | "https") {
            return Err(failed(RequestError::Scheme(hop.url.scheme.clone())));
        }
        if hop.url.host.is_empty() {
            return Err(failed(RequestError::NoHost));
        }
        // A webhook must not act on a request whose client already has an error.
        if Instant::now() >= self.deadline {
            return Err(failed(RequestError::TooLate));
        }
        let mut request = Request::builder()
            .method(hop.method.clone())
            .uri(hop.url.requested(""))
            // As client-go asks for JSON.
            .header(ACCEPT, "application/json, */*")
            .header(USER_AGENT, AGENT);
        if let Some(referer) = &hop.referer {
            request = request.header(REFERER, referer);
        }
        let body = if hop.has_body {
            request = request.header(CONTENT_TYPE, "application/json");
            self.body.clone()
        } else {
            Bytes::new()
        };
        let request = request.body(Full::new(body));
        let request = request.map_err(|error| failed(RequestError::Form(error)))?;
        match timeout_at(self.deadline, self.client.request(request)).await {
            Ok(response) => response.map_err(|error| failed(RequestError::Connection(error))),
            Err(_) => Err(failed(RequestError::TooLate)),
        }
    }

    async fn read(&self, response: Response<Incoming>) -> Result<Answer, CallError> {
        let status = response.status();
        let is_text = is_text(response.headers());
        let retry_after = retry_after(status, response.headers());
        // A webhook must not be able to exhaust the server's memory.
        let body = Limited::new(response.into_body(), BODY_BYTES).collect();
        let body = match timeout_at(self.deadline, body).await {
            Ok(Ok(body)) => body.to_bytes(),
            Ok(Err(error)) if error.is::<http_body_util::LengthLimitError>() => {
                return Err(CallError::TooLong);
            }
            Ok(Err(error)) => return Err(CallError::Unreadable(words(&*error))),
            Err(_) => return Err(CallError::Unreadable(TOO_LATE.to_owned())),
        };
        Ok(Answer {
            status,
            retry_after,
            is_text,
            body,
        })
    }
}

fn failed(url: impl Into<String>, why: impl Into<RequestError>) -> CallError {
    CallError::Request {
        url: url.into(),
        why: why.into(),
    }
}

/// One request of a chain of redirects.
struct Hop {
    url: Url,
    method: Method,
    has_body: bool,
    referer: Option<String>,
}

impl Hop {
    /// Returns the request that a redirect leads to, or `None` if the response is no redirect.
    fn next(&self, response: &Response<Incoming>) -> Result<Option<Hop>, CallError> {
        let keeps_body = match response.status().as_u16() {
            // As Go's redirectBehavior: these become a GET without a body, so the webhook behind them sees no review.
            301..=303 => false,
            307 | 308 => true,
            _ => return Ok(None),
        };
        let Some(location) = location(response) else {
            return Ok(None);
        };
        let url = self.url.resolve(&location).map_err(|why| {
            let why = RequestError::Location { location, why };
            failed(self.url.redacted(), why)
        })?;
        let is_downgrade = self.url.scheme == "https" && url.scheme == "http";
        Ok(Some(Hop {
            method: if keeps_body {
                self.method.clone()
            } else {
                Method::GET
            },
            // A body that an earlier redirect has dropped does not come back.
            has_body: self.has_body && keeps_body,
            // Go (refererForURL) does not reveal an https address to a plain http server.
            referer: (!is_downgrade).then(|| self.url.requested("")),
            url,
        }))
    }
}

fn location(response: &Response<Incoming>) -> Option<String> {
    let location = response.headers().get(LOCATION)?;
    let location = String::from_utf8_lossy(location.as_bytes()).into_owned();
    (!location.is_empty()).then_some(location)
}

/// Returns the pause that a response asks for before a retry (client-go: checkWait). Only seconds are read, not dates.
fn retry_after(status: StatusCode, headers: &HeaderMap) -> Option<Duration> {
    if status.as_u16() != 429 && status.as_u16() < 500 {
        return None;
    }
    let seconds: i64 = headers.get(RETRY_AFTER)?.to_str().ok()?.parse().ok()?;
    // Go multiplies without a check: what overflows wraps around, and a negative wait is none.
    let nanos = seconds.wrapping_mul(1_000_000_000);
    Some(Duration::from_nanos(u64::try_from(nanos).unwrap_or(0)))
}

/// Returns whether the body is plain text for people (client-go: isTextResponse).
fn is_text(headers: &HeaderMap) -> bool {
    headers.get(CONTENT_TYPE).is_none_or(|given| {
        let start = given.as_bytes().get(..TEXT.len());
        start.is_some_and(|start| start.eq_ignore_ascii_case(TEXT))
    })
}

/// Returns the error text that client-go's REST client makes of an error response.
fn refusal(status: StatusCode, is_text: bool, body: &Bytes) -> String {
    let said = serde_json::from_slice::<serde_json::Value>(body).unwrap_or_default();
    let is = |field: &str, wanted: &str| said.get(field).is_none_or(|given| given == wanted);
    if said["status"] == "Failure" && is("kind", "Status") && is("apiVersion", "v1") {
        return said["message"].as_str().unwrap_or_default().to_owned();
    }
    let text = if is_text {
        String::from_utf8_lossy(&body[..body.len().min(MOST_TEXT)])
    } else {
        Cow::Borrowed("unknown")
    };
    let text = text.trim();
    let sentence = match status.as_u16() {
        400 => "the server rejected our request for an unknown reason",
        401 => "the server has asked for the client to provide credentials",
        // apimachinery (NewGenericServerResponse) repeats the server's own text for these codes, and sometimes for 406.
        403 | 415 => return text.to_owned(),
        404 => "the server could not find the requested resource",
        405 => "the server does not allow this method on the requested resource",
        406 if !matches!(text, "" | "unknown") => return text.to_owned(),
        406 => "the server was unable to respond with a content type that the client supports",
        409 => "the server reported a conflict",
        422 => "the server rejected our request due to an error in our request",
        429 => "the server has received too many requests and has asked us to try again later",
        503 => "the server is currently unable to handle the request",
        504 => {
            "the server was unable to return a response in the time allotted, but may still be processing the request"
        }
        code if code >= 500 => {
            let quoted = mullion_kube_text::golang::quote(text);
            return format!(
                "an error on the server ({quoted}) has prevented the request from succeeding"
            );
        }
        code => {
            return format!(
                "the server responded with the status code {code} but did not return more information"
            );
        }
    };
    sentence.to_owned()
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Calls a webhook that always responds like this, for at most ten seconds. Returns the number of calls, their time and the outcome.
    async fn asked(
        status: u16,
        header: Option<&str>,
    ) -> (usize, Duration, Result<u16, &'static str>) {
        let (count, begin) = (Cell::new(0), Instant::now());
        let deadline = begin + Duration::from_secs(10);
        let mut headers = HeaderMap::new();
        if let Some(header) = header {
            headers.insert(RETRY_AFTER, header.parse().expect("it is a header"));
        }
        let status = StatusCode::from_u16(status).expect("it is a status");
        let answer = patiently(deadline, || {
            count.set(count.get() + 1);
            let retry_after = retry_after(status, &headers);
            async move {
                if Instant::now() < deadline {
                    Ok(Answer {
                        status,
                        retry_after,
                        is_text: true,
                        body: Bytes::new(),
                    })
                } else {
                    Err(TOO_LATE)
                }
            }
        });
        let answer = answer.await.map(|answer| answer.status.as_u16());
        (count.get(), begin.elapsed(), answer)
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_asked_to_come_again_does_so_ten_times_within_the_time_of_the_call() {
        let seconds = Duration::from_secs;
        for (status, header, wanted) in [
            (429, Some("0"), (11, seconds(0), Ok(429))),
            (500, Some("-3"), (11, seconds(0), Ok(500))),
            (503, Some("+1"), (11, seconds(10), Err(TOO_LATE))),
            (503, Some("4"), (4, seconds(10), Err(TOO_LATE))),
            (503, Some("600"), (2, seconds(10), Err(TOO_LATE))),
            (503, Some("9223372036854775807"), (11, seconds(0), Ok(503))),
            (
                503,
                Some("Wed, 21 Oct 2026 07:28:00 GMT"),
                (1, seconds(0), Ok(503)),
            ),
            (429, None, (1, seconds(0), Ok(429))),
            (409, Some("1"), (1, seconds(0), Ok(409))),
            (200, Some("1"), (1, seconds(0), Ok(200))),
        ] {
            let (count, took, answer) = asked(status, header).await;
            // Paused time goes in milliseconds.
            let took = seconds(took.as_secs());
            assert_eq!((count, took, answer), wanted, "{status} {header:?}");
        }
    }
}
