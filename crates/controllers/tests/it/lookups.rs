//! What rules look up: read as they ask for it, in as many rounds as they need.

use std::cell::Cell;

use k8s_openapi::api::core::v1::{Secret, ServiceAccount};
use kube::{Api, api::PostParams};
use mullion_controllers::admission::{Access, Lookups, ServiceAccount as Account};
use serde_json::{Value, json};

use crate::served;

fn object<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).expect("an object")
}

#[tokio::test(start_paused = true)]
async fn a_rule_is_asked_again_until_nothing_is_missing() {
    let context = served::context();
    let params = PostParams::default();
    let accounts: Api<ServiceAccount> = Api::default_namespaced(context.client.clone());
    let account = object(json!({
        "metadata": {"name": "builder"}, "imagePullSecrets": [{"name": "registry"}],
    }));
    accounts
        .create(&params, &account)
        .await
        .expect("it is made");
    let secrets: Api<Secret> = Api::default_namespaced(context.client.clone());
    let secret = object(json!({"metadata": {"name": "registry", "labels": {"a": "b"}}}));
    secrets.create(&params, &secret).await.expect("it is made");

    let lookups = Lookups::new(&context);
    let asked = Cell::new(0);
    let label = lookups.ask(|known| {
        asked.set(asked.get() + 1);
        let namespace = Some("default");
        let account = known.find("", "serviceaccounts", namespace, "builder")?;
        let name = account["imagePullSecrets"][0]["name"].as_str()?;
        let secret = known.find("", "secrets", namespace, name)?;
        Some(secret["metadata"]["labels"]["a"].clone())
    });
    assert_eq!(label.await.expect("an answer"), Some(json!("b")));
    assert_eq!(asked.get(), 3);
}

#[tokio::test(start_paused = true)]
async fn what_is_not_there_is_none_whether_its_kind_is_served_or_not() {
    let context = served::context();
    let lookups = Lookups::new(&context);
    let found = lookups.ask(|known| {
        let specs = known.find("windows.k8s.io", "gmsacredentialspecs", None, "web");
        let class = known.find("node.k8s.io", "runtimeclasses", None, "none");
        let pools = known.list("karpenter.sh", "nodepools", None);
        (
            specs.is_some(),
            class.is_some(),
            pools.len(),
            known.is_complete(),
        )
    });
    assert_eq!(found.await.expect("an answer"), (false, false, 0, true));
}

#[tokio::test(start_paused = true)]
async fn permissions_are_those_of_the_service_account() {
    let context = served::context();
    let lookups = Lookups::new(&context);
    let account = Account {
        namespace: "default",
        name: "builder",
    };
    let access = Access {
        verb: "use",
        group: "windows.k8s.io",
        plural: "gmsacredentialspecs",
        name: "web",
    };
    let permission = lookups.ask(|known| known.may(&account, &access)).await;
    assert!(!permission.expect("an answer").allowed);
}
