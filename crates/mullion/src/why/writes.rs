//! Sends objects to an API server, most of them as dry runs: the server says what becomes of each, what is wrong with it, and what it warns of.

use http::{Method, Request, header::WARNING};
use kube::{Client, client::Body, core::Status};
use serde_json::{Value, json};

use super::{source::PATIENCE, template::put};
use crate::{failure::Failure, input};

/// Creates an object. With `may_exist`, a conflict is no error.
pub(super) async fn create(
    client: &Client,
    path: &str,
    object: &Value,
    may_exist: bool,
) -> Result<(), Failure> {
    match answer(client, Method::POST, path, object).await? {
        Err(status) if may_exist && status.code == 409 => Ok(()),
        answer => answer
            .map(drop)
            .map_err(|status| Failure::input(status.message)),
    }
}

/// Creates an object; returns what the server answers, which may be an error status.
pub(super) async fn try_create(
    client: &Client,
    path: &str,
    object: &Value,
) -> Result<Result<Answered, Status>, Failure> {
    answer(client, Method::POST, path, object).await
}

/// Asks whether a server would create an object at a path (dry run, strict), or another one like it if its name is taken; returns what the
/// server warns of. The objects of users who may not write them are not checked.
///
/// # Errors
/// The server refuses the object; the error repeats its message.
pub(super) async fn would_create(
    client: &Client,
    path: &str,
    object: &Value,
) -> Result<Vec<String>, Failure> {
    match dry_run(client, path, object).await? {
        Ok(warnings) => Ok(warnings),
        Err(status) if status.code == 403 => Ok(Vec::new()),
        Err(status) => Err(Failure::input(status.message)),
    }
}

/// Asks a server as [`would_create`] does. Returns what the server warns of, or the status with which it refuses the object.
pub(super) async fn dry_run(
    client: &Client,
    path: &str,
    object: &Value,
) -> Result<Result<Vec<String>, Status>, Failure> {
    let path = format!("{path}?dryRun=All&fieldValidation=Strict");
    let mut asked = object.clone();
    // What a server has written, as in a manifest that kubectl printed.
    let metadata = asked["metadata"].as_object_mut();
    let metadata = metadata.ok_or_else(|| Failure::input("an object without metadata"))?;
    for field in ["managedFields", "resourceVersion", "uid"] {
        metadata.remove(field);
    }
    let mut answered = answer(client, Method::POST, &path, &asked).await?;
    if answered.as_ref().is_err_and(|status| status.code == 409) {
        let name = asked["metadata"]["name"].as_str().unwrap_or_default();
        let prefix = json!(format!("{name}-"));
        put(&mut asked["metadata"], "generateName", prefix);
        put(&mut asked["metadata"], "name", Value::Null);
        answered = answer(client, Method::POST, &path, &asked).await?;
    }
    Ok(answered.map(|answered| answered.warnings))
}

/// Applies an object and returns it as the server answers it.
pub(super) async fn apply(client: &Client, path: &str, object: &Value) -> Result<Value, Failure> {
    let applied = answer(client, Method::PATCH, path, object).await?;
    applied
        .map(|answered| answered.object)
        .map_err(|status| Failure::input(status.message))
}

/// Returns whether a server does not know the path of a request, as opposed to an object in it: it serves no such kind.
fn is_of_a_path(status: &Status) -> bool {
    let message = status.message.trim();
    status.code == 404
        && (message == "404 page not found"
            || message.starts_with("the server could not find the requested resource"))
}

/// An object as a server has taken it, and what the server warns of.
pub(super) struct Answered {
    pub(super) object: Value,
    /// The texts of the `Warning` headers.
    pub(super) warnings: Vec<String>,
}

/// The query parameter that has a server refuse unknown fields.
const STRICT: &str = "fieldValidation=Strict";

/// Sends an object and returns the server's answer, which may be an error status. A server that refuses unknown fields has not looked at the
/// values of the others, so it is asked about them as well.
async fn answer(
    client: &Client,
    method: Method,
    path: &str,
    object: &Value,
) -> Result<Result<Answered, Status>, Failure> {
    let answered = one_answer(client, method.clone(), path, object).await?;
    let Err(mut status) = answered else {
        return Ok(answered);
    };
    if path.contains(STRICT) && status.message.contains("strict decoding error") {
        let lenient = path.replace(STRICT, "fieldValidation=Ignore&dryRun=All");
        let more = one_answer(client, method, &lenient, object).await?;
        if let Err(more) = more
            && more.reason == "Invalid"
        {
            status.message += &format!("; {}", more.message);
        }
    }
    Ok(Err(status))
}

/// Sends an object and returns the server's answer, which may be an error status.
async fn one_answer(
    client: &Client,
    method: Method,
    path: &str,
    object: &Value,
) -> Result<Result<Answered, Status>, Failure> {
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    let kind_of_body = match method {
        Method::PATCH => "application/apply-patch+yaml",
        _ => "application/json",
    };
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("content-type", kind_of_body)
        .body(object.to_string().into_bytes())
        .map_err(|error| Failure::run(format!("{path} is no address: {error}")))?;
    match tokio::time::timeout(PATIENCE, sent(client, request)).await {
        Ok(Ok(made)) => Ok(Ok(made)),
        Ok(Err(kube::Error::Api(mut status))) => {
            if is_of_a_path(&status) {
                let text = |field: &str| object[field].as_str().unwrap_or_default();
                status.message = format!(
                    "no matches for kind {:?} in version {:?}",
                    text("kind"),
                    text("apiVersion")
                );
            }
            Ok(Err(*status))
        }
        Ok(Err(error)) => Err(Failure::run(format!("{name} was not answered: {error}"))),
        Err(_) => Err(Failure::run(format!(
            "{name} was not answered within {} s",
            PATIENCE.as_secs()
        ))),
    }
}

/// Sends a request. `Client::request` does the same, but drops the warnings.
async fn sent(client: &Client, request: Request<Vec<u8>>) -> Result<Answered, kube::Error> {
    let response = client.send(request.map(Body::from)).await?;
    let code = response.status();
    let warnings = response.headers().get_all(WARNING).iter();
    let warnings = warnings.filter_map(|value| warning(str::from_utf8(value.as_bytes()).ok()?));
    let warnings = warnings.collect();
    let body = response.into_body().collect_bytes().await?;
    if code.is_client_error() || code.is_server_error() {
        let status: Status = input::json(&body).unwrap_or_else(|_| {
            // A proxy need not answer with a Status.
            let text = String::from_utf8_lossy(&body);
            Status::failure(text.trim(), "").with_code(code.as_u16())
        });
        return Err(kube::Error::Api(status.boxed()));
    }
    let object = input::json(&body).map_err(kube::Error::SerdeError)?;
    Ok(Answered { object, warnings })
}

/// Returns the text of a `Warning` header, as in `299 - "the text"`; a quote and a backslash in the text have a backslash before them.
fn warning(header: &str) -> Option<String> {
    let (_, quoted) = header.split_once('"')?;
    let mut text = String::new();
    let mut characters = quoted.chars();
    loop {
        match characters.next()? {
            '"' => return Some(text),
            '\\' => text.push(characters.next()?),
            character => text.push(character),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_of_a_warning_is_what_stands_between_its_quotes() {
        for (header, text) in [
            (r#"299 - "two words""#, Some("two words")),
            (
                r#"299 - "a \"b\" and \\" "Sat, 25 Aug 2012 23:34:45 GMT""#,
                Some(r#"a "b" and \"#),
            ),
            (r#"299 - "cut"#, None),
            ("299", None),
        ] {
            assert_eq!(warning(header).as_deref(), text, "{header}");
        }
    }
}
