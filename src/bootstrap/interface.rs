//! Which address of this machine the others are told, in NCCL's syntax.
//!
//! `FLAGOSCOMM_SOCKET_IFNAME` is a comma-separated list of name prefixes; `^` in front of the list
//! excludes, `=` demands exact names (`^=` both). Without it the vendor's own variable guides.
#![forbid(unsafe_code)]

use crate::error::{Code, Error, Result};
use crate::sys::net::InterfaceAddress;
use std::net::IpAddr;

/// A parsed interface filter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Filter {
    exclude: bool,
    exact: bool,
    names: Vec<String>,
    /// The variable and value it came from, for error texts.
    origin: String,
}

/// Which address families are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) enum Family {
    #[default]
    Any,
    V4,
    V6,
}

impl Filter {
    /// Parses the value of `variable`.
    pub(crate) fn parse(variable: &str, value: &str) -> Filter {
        let mut rest = value.trim();
        let mut strip = |sign: char| {
            let stripped = rest.strip_prefix(sign);
            rest = stripped.unwrap_or(rest);
            stripped.is_some()
        };
        let exclude = strip('^');
        let exact = strip('=');
        // NCCL's lists may carry a port after each name.
        let names = rest
            .split(',')
            .map(|name| name.split(':').next().unwrap_or_default().trim().to_owned())
            .filter(|name| !name.is_empty())
            .collect();
        Filter {
            exclude,
            exact,
            names,
            origin: format!("{variable}={value}"),
        }
    }

    fn matches(&self, name: &str) -> bool {
        self.names.iter().any(|wanted| {
            if self.exact {
                wanted == name
            } else {
                name.starts_with(wanted.as_str())
            }
        })
    }
}

fn virtual_bridge(name: &str) -> bool {
    ["docker", "veth", "virbr", "cni", "br-"]
        .iter()
        .any(|prefix| name.starts_with(prefix))
}

fn link_local(addr: &IpAddr) -> bool {
    match addr {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => (v6.segments()[0] & 0xffc0) == 0xfe80,
    }
}

fn describe(all: &[InterfaceAddress]) -> String {
    let names: Vec<String> = all
        .iter()
        .map(|i| format!("{} {}{}", i.name, i.addr, if i.up { "" } else { " (down)" }))
        .collect();
    if names.is_empty() {
        String::from("none at all")
    } else {
        names.join(", ")
    }
}

/// Orders the addresses that may be told to other ranks, the best first.
///
/// With an including filter, the order of its list decides, and an exact name wins over a name
/// that only begins so. Without one: real interfaces, then bridges of containers, then link-local
/// addresses, then loopback; IPv4 before IPv6 within a class.
pub(crate) fn choose(
    all: &[InterfaceAddress],
    filter: Option<&Filter>,
    family: Family,
) -> Result<Vec<InterfaceAddress>> {
    let fits = |i: &&InterfaceAddress| {
        i.up && match family {
            Family::Any => true,
            Family::V4 => i.addr.is_ipv4(),
            Family::V6 => i.addr.is_ipv6(),
        }
    };
    let mut chosen: Vec<InterfaceAddress> = Vec::new();
    match filter {
        Some(f) if !f.exclude => {
            for wanted in &f.names {
                let exact = all.iter().filter(fits).filter(|i| i.name == *wanted);
                chosen.extend(exact.cloned());
            }
            if !f.exact {
                for wanted in &f.names {
                    let prefix = all
                        .iter()
                        .filter(fits)
                        .filter(|i| i.name.starts_with(wanted.as_str()) && i.name != *wanted);
                    chosen.extend(prefix.cloned());
                }
            }
            // IPv4 first and link-local last, without disturbing the list's order of names.
            let mut order: Vec<String> = Vec::new();
            for i in &chosen {
                if !order.contains(&i.name) {
                    order.push(i.name.clone());
                }
            }
            chosen.sort_by_key(|i| {
                (
                    order.iter().position(|n| *n == i.name),
                    link_local(&i.addr),
                    i.addr.is_ipv6(),
                )
            });
        }
        _ => {
            chosen = all
                .iter()
                .filter(fits)
                .filter(|i| filter.is_none_or(|f| !f.matches(&i.name)))
                .cloned()
                .collect();
            chosen.sort_by_key(|i| {
                (
                    i.loopback,
                    link_local(&i.addr),
                    virtual_bridge(&i.name),
                    i.addr.is_ipv6(),
                )
            });
            // Loopback and link-local addresses mean nothing elsewhere: only if nothing else is there.
            if let Some(first) = chosen.first() {
                let (loopback, local) = (first.loopback, link_local(&first.addr));
                chosen.retain(|i| i.loopback == loopback && link_local(&i.addr) == local);
            }
        }
    }
    if chosen.is_empty() {
        let wanted = filter.map_or(String::from("no filter is set"), |f| f.origin.clone());
        let family = match family {
            Family::Any => "",
            Family::V4 => " with an IPv4 address",
            Family::V6 => " with an IPv6 address",
        };
        return Err(Error::new(
            Code::SystemError,
            format!(
                "no network interface{family} fits ({wanted}); this machine has: {}",
                describe(all)
            ),
        ));
    }
    Ok(chosen)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interface(name: &str, addr: &str, up: bool) -> InterfaceAddress {
        let addr: IpAddr = addr.parse().unwrap();
        InterfaceAddress {
            name: name.into(),
            addr,
            scope: 0,
            up,
            loopback: name == "lo",
        }
    }

    fn machine() -> Vec<InterfaceAddress> {
        vec![
            interface("lo", "127.0.0.1", true),
            interface("lo", "::1", true),
            interface("docker0", "172.17.0.1", true),
            interface("bond0.2973", "10.9.0.1", true),
            interface("bond0", "10.0.0.1", true),
            interface("eth1", "10.1.0.1", false),
            interface("tun0", "fe80::1", true),
        ]
    }

    fn first(value: Option<&str>, family: Family) -> Result<String> {
        let filter = value.map(|v| Filter::parse("X", v));
        choose(&machine(), filter.as_ref(), family).map(|c| format!("{} {}", c[0].name, c[0].addr))
    }

    #[test]
    fn default_skips_loopback_bridges_link_local_and_interfaces_that_are_down() {
        assert_eq!(first(None, Family::Any).unwrap(), "bond0.2973 10.9.0.1");
        let only_lo = &machine()[..2];
        assert_eq!(choose(only_lo, None, Family::Any).unwrap()[0].name, "lo");
        let bridge = vec![machine()[0].clone(), machine()[2].clone()];
        assert_eq!(
            choose(&bridge, None, Family::Any).unwrap()[0].name,
            "docker0"
        );
        let tunnel = vec![machine()[0].clone(), machine()[6].clone()];
        assert_eq!(choose(&tunnel, None, Family::Any).unwrap()[0].name, "tun0");
    }

    #[test]
    fn an_exact_name_wins_over_a_prefix() {
        assert_eq!(first(Some("bond0"), Family::Any).unwrap(), "bond0 10.0.0.1");
        assert_eq!(
            first(Some("=bond0.2973"), Family::Any).unwrap(),
            "bond0.2973 10.9.0.1"
        );
        assert!(first(Some("=bond"), Family::Any).is_err());
        assert_eq!(
            first(Some("bond"), Family::Any).unwrap(),
            "bond0.2973 10.9.0.1"
        );
    }

    #[test]
    fn lists_exclusions_and_absent_names() {
        assert_eq!(
            first(Some("nope0,lo"), Family::Any).unwrap(),
            "lo 127.0.0.1"
        );
        assert_eq!(first(Some("lo"), Family::V6).unwrap(), "lo ::1");
        assert_eq!(first(Some("l"), Family::Any).unwrap(), "lo 127.0.0.1");
        assert_eq!(
            first(Some("^bond0"), Family::Any).unwrap(),
            "docker0 172.17.0.1"
        );
        assert_eq!(
            first(Some("^=bond0"), Family::Any).unwrap(),
            "bond0.2973 10.9.0.1"
        );
        assert_eq!(
            first(Some("^bond0,docker"), Family::V4).unwrap(),
            "lo 127.0.0.1"
        );
        let error = first(Some("nope0"), Family::Any).unwrap_err();
        assert!(error.text().contains("X=nope0"), "{error}");
        assert!(error.text().contains("bond0 10.0.0.1"), "{error}");
        assert!(error.text().contains("eth1 10.1.0.1 (down)"), "{error}");
    }
}
