//! Sorts the ports of a slice.
//!
//! kube-controller-manager sorts them by the 128-bit FNV-1a hash of a dump of the Go struct. The order has no
//! meaning, but `kubectl get endpointslices` prints it, so the same dump is hashed here.

use k8s_openapi::api::discovery::v1::EndpointPort;

const OFFSET: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;

/// Sorts ports in kube-controller-manager's order.
pub(super) fn sort(ports: &mut [EndpointPort]) {
    ports.sort_by_cached_key(|port| hash(&dump(port)));
}

/// Formats the port as Go's dump of the struct does.
fn dump(port: &EndpointPort) -> String {
    let field = |value: Option<String>| value.unwrap_or_else(|| "<nil>".to_owned());
    format!(
        "(v1.EndpointPort){{Name:(*string){} Protocol:(*v1.Protocol){} Port:(*int32){} AppProtocol:(*string){}}}",
        field(port.name.clone()),
        field(port.protocol.clone()),
        field(port.port.map(|number| number.to_string())),
        field(port.app_protocol.clone()),
    )
}

fn hash(text: &str) -> u128 {
    text.bytes().fold(OFFSET, |hash, byte| {
        (hash ^ u128::from(byte)).wrapping_mul(PRIME)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(name: &str, number: i32, protocol: &str) -> EndpointPort {
        EndpointPort {
            name: Some(name.to_owned()),
            port: Some(number),
            protocol: Some(protocol.to_owned()),
            app_protocol: None,
        }
    }

    #[test]
    fn the_hash_is_fnv_1a_of_128_bits() {
        assert_eq!(hash(""), OFFSET);
        assert_eq!(hash("a"), 0xd228_cb69_6f1a_8caf_7891_2b70_4e4a_8964);
    }

    #[test]
    fn a_port_is_dumped_as_go_would() {
        assert_eq!(
            dump(&port("dns", 53, "UDP")),
            "(v1.EndpointPort){Name:(*string)dns Protocol:(*v1.Protocol)UDP Port:(*int32)53 AppProtocol:(*string)<nil>}"
        );
    }

    #[test]
    fn the_order_does_not_depend_on_how_the_service_lists_its_ports() {
        let ports = [
            port("dns", 53, "UDP"),
            port("dns-tcp", 53, "TCP"),
            port("metrics", 9153, "TCP"),
        ];
        let mut forward = ports.to_vec();
        let mut backward: Vec<_> = ports.into_iter().rev().collect();
        sort(&mut forward);
        sort(&mut backward);
        assert_eq!(forward, backward);
    }
}
