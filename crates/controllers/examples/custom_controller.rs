//! A controller of one's own with this crate's informer and work queue, against an API server in the same process.
//!
//!     cargo run -p mullion-controllers --example custom_controller
//!
//! Every Namespace that says whose it is (label `team`) has a ConfigMap `owner` with the team's name. The controller is level-triggered: it looks at what is
//! there and makes it right, whichever event woke it, so a ConfigMap that somebody deletes comes back.

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams},
    runtime::wait::await_condition,
};
use mullion_apiserver::{ApiServer, Config, admission::User};
use mullion_controllers::{Clock, Context, Informer, Queue};
use serde_json::json;

const NAME: &str = "owner";

/// Starts the controller: what is watched wakes the queue with the name of a Namespace, one worker takes the names in turn.
fn start(context: &Context) {
    let queue = Queue::new("team-owner");
    let namespaces: Informer<Namespace> = watch(context);
    let config_maps: Informer<ConfigMap> = watch(context);
    let names = queue.clone();
    namespaces.on_change(move |change| names.add(change.object().name_any()));
    let names = queue.clone();
    config_maps.on_change(move |change| {
        if change.object().name_any() == NAME {
            names.add(change.object().namespace().unwrap_or_default());
        }
    });
    let context = context.clone();
    context.clone().tasks.spawn(async move {
        // Before both informers have seen everything, what looks missing may only be unread.
        if namespaces.synced().await && config_maps.synced().await {
            let workers = context.clone();
            queue.run(&workers, 1, move |namespace: String| {
                let (client, namespaces) = (context.client.clone(), namespaces.clone());
                let config_maps = config_maps.clone();
                async move { reconcile(client, &namespaces, &config_maps, &namespace).await }
            });
        }
    });
}

fn watch<K>(context: &Context) -> Informer<K>
where
    K: kube::Resource<DynamicType = ()> + Clone + std::fmt::Debug + Send + Sync + 'static,
    K: serde::de::DeserializeOwned,
{
    Informer::new(
        Api::all(context.client.clone()),
        &[],
        context.tasks.clone(),
        context.shutdown.clone(),
    )
}

/// Makes one Namespace right. An error brings the name back after a while that grows with every failure.
async fn reconcile(
    client: Client,
    namespaces: &Informer<Namespace>,
    config_maps: &Informer<ConfigMap>,
    namespace: &str,
) -> kube::Result<()> {
    let Some(object) = namespaces.get("", namespace) else {
        return Ok(());
    };
    let (Some(team), None) = (
        object.labels().get("team"),
        &object.metadata.deletion_timestamp,
    ) else {
        return Ok(());
    };
    let found = config_maps.get(namespace, NAME);
    let said = found
        .as_ref()
        .and_then(|map| map.data.as_ref()?.get("team"));
    if said == Some(team) {
        return Ok(());
    }
    let wanted = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": NAME}, "data": {"team": team}});
    let api: Api<ConfigMap> = Api::namespaced(client, namespace);
    let apply = PatchParams::apply("team-owner").force();
    api.patch(NAME, &apply, &Patch::Apply(wanted)).await?;
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let server = ApiServer::new(Config::default());
    let client = Client::new(server.router_as(User::administrator()), "default");
    let context = Context::new(client.clone(), Clock::system());
    start(&context);

    let namespaces: Api<Namespace> = Api::all(client.clone());
    let shop = json!({"metadata": {"name": "shop", "labels": {"team": "checkout"}}});
    let shop: Namespace = serde_json::from_value(shop)?;
    namespaces.create(&PostParams::default(), &shop).await?;

    let config_maps: Api<ConfigMap> = Api::namespaced(client, "shop");
    let says = |team: &'static str| {
        move |map: Option<&ConfigMap>| {
            map.and_then(|map| map.data.as_ref()?.get("team"))
                .is_some_and(|said| said == team)
        }
    };
    await_condition(config_maps.clone(), NAME, says("checkout")).await?;
    println!("shop belongs to checkout");

    // Somebody deletes what the controller made: it is made again, as another object.
    let first = config_maps.get(NAME).await?.metadata.uid;
    config_maps.delete(NAME, &DeleteParams::default()).await?;
    let again = move |map: Option<&ConfigMap>| map.is_some_and(|map| map.metadata.uid != first);
    await_condition(config_maps.clone(), NAME, again).await?;
    println!("deleted, and made again");

    // The Namespace changes hands.
    let label = json!({"metadata": {"labels": {"team": "catalogue"}}});
    let params = PatchParams::default();
    namespaces
        .patch("shop", &params, &Patch::Merge(label))
        .await?;
    await_condition(config_maps, NAME, says("catalogue")).await?;
    println!("shop belongs to catalogue");

    context.stop().await;
    Ok(())
}
