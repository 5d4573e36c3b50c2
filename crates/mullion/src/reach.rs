//! Waits for a cluster's API server, for commands that run until they are stopped.
//!
//! Such a command does not end when the API server is unreachable, but says so: one sentence names the request and the error, after longer
//! and longer pauses.

use std::{fmt, time::Duration};

use kube::Client;
use tokio::time::{sleep, timeout};

use crate::why::source::root;

/// The time that one request may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// The pause after the first failed request.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// The interval at which a working API server is checked.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// Waits until the API server answers, even with an error. `server` is its name in the log.
pub(crate) async fn answering(client: &Client, server: &str) {
    let mut pause = FIRST_PAUSE;
    while let Err(why) = ask(client).await {
        tracing::warn!(
            "the API server {server} cannot be reached, which is tried again in {} s: {why}",
            pause.as_secs()
        );
        sleep(pause).await;
        pause = LONGEST_PAUSE.min(2 * pause);
    }
    if pause != FIRST_PAUSE {
        tracing::warn!("the API server {server} answers");
    }
}

/// Logs when the API server stops answering and when it answers again, as long as the future is polled.
pub(crate) async fn follow(client: &Client, server: &str) {
    loop {
        answering(client, server).await;
        sleep(LOOK_EVERY).await;
    }
}

/// The reason why the API server is not reached.
#[derive(Debug)]
enum Unreached {
    NoAnswer,
    Request(kube::Error),
}

impl fmt::Display for Unreached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unreached::NoAnswer => write!(f, "no answer within {} s", PATIENCE.as_secs()),
            Unreached::Request(kube::Error::Api(status)) => f.write_str(&status.message),
            Unreached::Request(error) => f.write_str(&root(error)),
        }
    }
}

/// Requests the version, which every client may read.
async fn ask(client: &Client) -> Result<(), Unreached> {
    match timeout(PATIENCE, client.apiserver_version()).await {
        Err(_) => Err(Unreached::NoAnswer),
        Ok(Ok(_)) => Ok(()),
        // The server answers, even if it refuses; the next request will say why.
        Ok(Err(kube::Error::Api(status))) if status.code < 500 => Ok(()),
        Ok(Err(error)) => Err(Unreached::Request(error)),
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io,
        sync::{Arc, Mutex},
    };

    use http::{Request, Response};
    use kube::client::Body;
    use tokio::time::Instant;
    use tower::service_fn;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_api_server_is_asked_after_longer_and_longer_pauses_until_it_answers() {
        let begun = Instant::now();
        let tries = Arc::<Mutex<Vec<u64>>>::default();
        let noted = Arc::clone(&tries);
        let service = service_fn(move |_: Request<Body>| {
            let mut tries = noted.lock().expect("nobody panics");
            tries.push(begun.elapsed().as_secs());
            let answer = match tries.len() {
                1..=6 => Err(io::Error::from(io::ErrorKind::ConnectionRefused)),
                7 => Ok((503_u16, "starting")),
                _ => Ok((401, "who are you?")),
            };
            async move {
                let (status, body) = answer?;
                let body = format!(
                    r#"{{"kind":"Status","apiVersion":"v1","status":"Failure","message":"{body}","code":{status}}}"#
                );
                let answer = Response::builder().status(status);
                Ok::<_, io::Error>(answer.body(Body::from(body.into_bytes())).expect("valid"))
            }
        });
        answering(&Client::new(service, "default"), "https://there").await;
        let tries = tries.lock().expect("nobody panics");
        assert_eq!(*tries, [0, 1, 3, 7, 15, 31, 61, 91]);
    }
}
