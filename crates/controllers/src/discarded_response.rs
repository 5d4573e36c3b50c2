//! Sends requests and discards their responses, because informers see the resulting objects anyway.

use std::pin::pin;

use futures::AsyncBufReadExt;
use http::Request;
use kube::{Client, Error, core::request};

/// Sends a request and drops its answer, unless that is a refusal. The answer is received to its end, so that its connection can be used
/// again, but neither gathered nor decoded.
///
/// # Errors
/// The request could not be made or sent, or was refused.
pub(crate) async fn send(
    client: &Client,
    request: Result<Request<Vec<u8>>, request::Error>,
) -> Result<(), Error> {
    let request = request.map_err(Error::BuildRequest)?;
    let mut answer = pin!(client.request_stream(request).await?);
    loop {
        let length = answer.fill_buf().await.map_err(Error::ReadEvents)?.len();
        if length == 0 {
            return Ok(());
        }
        answer.consume_unpin(length);
    }
}
