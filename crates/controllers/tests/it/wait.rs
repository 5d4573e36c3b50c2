//! Waiting for what becomes of an object, by watching it. Time is paused: whoever waits lets it pass.

use std::{fmt::Debug, time::Duration};

use kube::{Api, Resource, runtime::wait::await_condition};
use serde::de::DeserializeOwned;

/// How much simulated time a test waits at most.
const PATIENCE: Duration = Duration::from_secs(3600);

/// The object as soon as `done` holds of it.
pub(crate) async fn until<K>(api: &Api<K>, name: &str, done: impl Fn(&K) -> bool) -> K
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let condition = |object: Option<&K>| object.is_some_and(&done);
    let waited = tokio::time::timeout(PATIENCE, await_condition(api.clone(), name, condition));
    match waited.await {
        Ok(seen) => seen
            .expect("the watch goes on")
            .expect("the condition holds of an object"),
        Err(_) => panic!("{name} never came so far: {:#?}", api.get_opt(name).await),
    }
}

/// Lets time pass until the object is gone.
pub(crate) async fn until_gone<K>(api: &Api<K>, name: &str)
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let condition = |object: Option<&K>| object.is_none();
    let waited = tokio::time::timeout(PATIENCE, await_condition(api.clone(), name, condition));
    match waited.await {
        Ok(seen) => drop(seen.expect("the watch goes on")),
        Err(_) => panic!("{name} is still there"),
    }
}
