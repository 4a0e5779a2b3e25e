//! What the ranks called, where it should be the same on all: which of them differ from most, and in what.
#![forbid(unsafe_code)]

use crate::control::wire::{Reader, Writer};
use crate::words::{counted, ranks_named};

/// So many calls are told in full; of the ranks beyond only the numbers.
const SHOWN: usize = 8;
/// Calls that are told apart; those beyond count as different from all.
const TOLD_APART: usize = 64;
/// So many calls of a group are shown.
const OF_GROUP: usize = 3;

/// One thing that belongs to a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub(crate) enum Field {
    Operation = 0,
    Count = 1,
    DataType = 2,
    Operator = 3,
    Root = 4,
    Peer = 5,
    /// The operation's number on its communicator.
    Number = 6,
    /// Why the rank itself refuses the call.
    Refusal = 7,
}

impl Field {
    const ALL: [Field; 8] = [
        Field::Operation,
        Field::Count,
        Field::DataType,
        Field::Operator,
        Field::Root,
        Field::Peer,
        Field::Number,
        Field::Refusal,
    ];

    fn name(self) -> &'static str {
        match self {
            Field::Operation => "operation",
            Field::Count => "count",
            Field::DataType => "data type",
            Field::Operator => "operator",
            Field::Root => "root",
            Field::Peer => "peer",
            Field::Number => "sequence number",
            Field::Refusal => "being refused",
        }
    }
}

/// A call as its fields, in words, in the order of [`Field`].
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Shape(Vec<(Field, String)>);

impl Shape {
    pub(crate) fn new(operation: &str) -> Shape {
        Shape(vec![(Field::Operation, operation.to_owned())])
    }

    /// The same with one field more.
    pub(crate) fn with(mut self, field: Field, value: impl ToString) -> Shape {
        self.0.push((field, value.to_string()));
        self
    }

    fn get(&self, field: Field) -> Option<&str> {
        let found = self.0.iter().find(|(own, _)| *own == field);
        found.map(|(_, value)| value.as_str())
    }

    /// "Reduce(count 5, float32, sum, root 0) #3".
    pub(crate) fn text(&self) -> String {
        let inside = self.0.iter().filter_map(|(field, value)| match field {
            Field::Count | Field::Root | Field::Peer => Some(format!("{} {value}", field.name())),
            Field::DataType | Field::Operator => Some(value.clone()),
            Field::Operation | Field::Number | Field::Refusal => None,
        });
        let inside: Vec<String> = inside.collect();
        let mut text = self.get(Field::Operation).unwrap_or("?").to_owned();
        if !inside.is_empty() {
            text += &format!("({})", inside.join(", "));
        }
        if let Some(number) = self.get(Field::Number) {
            text += &format!(" #{number}");
        }
        if let Some(why) = self.get(Field::Refusal) {
            text += &format!(" (refused there: {why})");
        }
        text
    }

    pub(crate) fn encode(&self, writer: &mut Writer) {
        writer.u32(self.0.len() as u32);
        for (field, value) in &self.0 {
            writer.u32(*field as u32).bytes(value.as_bytes());
        }
    }

    /// `None`: it is something else.
    pub(crate) fn decode(reader: &mut Reader<'_>) -> Option<Shape> {
        let fields = reader.u32()?;
        let mut shape = Shape::default();
        for _ in 0..fields {
            let raw = reader.u32()?;
            let field = Field::ALL.into_iter().find(|f| *f as u32 == raw)?;
            shape.0.push((field, reader.text()?));
        }
        Some(shape)
    }
}

/// How the ranks' calls differ: the same text for whoever knows all of them.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Disagreement {
    /// "count and root".
    pub fields: String,
    /// "rank 0, 2-7 called A but rank 1 called B".
    pub who: String,
}

/// Compares what each rank called: one call, or those of a group. `None`: all the same.
pub(crate) fn disagreement(each: &[Vec<Shape>]) -> Option<Disagreement> {
    let mut alike: Vec<Vec<u32>> = Vec::new();
    let mut beyond: Vec<u32> = Vec::new();
    let of = |ranks: &Vec<u32>| &each[ranks[0] as usize];
    for (rank, calls) in each.iter().enumerate() {
        match alike.iter().position(|ranks| of(ranks) == calls) {
            Some(at) => alike[at].push(rank as u32),
            None if alike.len() < TOLD_APART => alike.push(vec![rank as u32]),
            None => beyond.push(rank as u32),
        }
    }
    if alike.len() <= 1 {
        return None;
    }
    // Those of most come first; among equals, of the lowest rank.
    alike.sort_by_key(|ranks| (std::cmp::Reverse(ranks.len()), ranks[0]));
    let usual = of(&alike[0]);
    let lengths_differ = alike.iter().any(|ranks| of(ranks).len() != usual.len());
    let mut differing: Vec<&str> = Vec::new();
    if lengths_differ {
        differing.push("number of calls in the group");
    }
    // Positions in the group where calls differ, for all pairs of calls at them.
    let mut positions: Vec<usize> = Vec::new();
    let longest = alike.iter().map(|ranks| of(ranks).len()).max().unwrap_or(0);
    for at in 0..longest {
        let odd = |ranks: &&Vec<u32>| of(ranks).get(at) != usual.get(at);
        for other in alike.iter().filter(odd) {
            if positions.last() != Some(&at) {
                positions.push(at);
            }
            let (Some(one), Some(two)) = (usual.get(at), of(other).get(at)) else {
                continue;
            };
            for field in Field::ALL {
                let (one, two) = (one.get(field), two.get(field));
                // What one of two operations has not at all is no news beside their names.
                let news = one != two
                    && (field == Field::Refusal || one.is_some() && two.is_some())
                    && !differing.contains(&field.name());
                if news {
                    differing.push(field.name());
                }
            }
        }
    }
    let mut said: Vec<String> = alike
        .iter()
        .take(SHOWN)
        .map(|ranks| {
            let who = ranks_named(ranks.iter().copied());
            format!("{who} called {}", show(of(ranks), &positions))
        })
        .collect();
    let mut rest: Vec<u32> = alike.iter().skip(SHOWN).flatten().copied().collect();
    rest.extend(beyond);
    if !rest.is_empty() {
        rest.sort_unstable();
        said.push(format!(
            "{} called yet others ({})",
            counted(rest.len() as u64, "more rank"),
            ranks_named(rest)
        ));
    }
    let odd = said.split_off(1).join(", ");
    Some(Disagreement {
        fields: match differing.split_last() {
            Some((last, [])) => (*last).to_owned(),
            Some((last, others)) => format!("{} and {last}", others.join(", ")),
            None => String::from("calls"),
        },
        who: format!("{} but {odd}", said[0]),
    })
}

/// A rank's calls in words: of a group only some of those that differ.
fn show(calls: &[Shape], positions: &[usize]) -> String {
    if let [one] = calls {
        return one.text();
    }
    let shown: Vec<String> = positions
        .iter()
        .filter_map(|at| calls.get(*at).map(|call| (at, call)))
        .take(OF_GROUP)
        .map(|(at, call)| format!("{} as call {}", call.text(), at + 1))
        .collect();
    let more = positions.len().saturating_sub(shown.len().max(1));
    let mut text = match shown.is_empty() {
        true => format!("{} calls in the group", calls.len()),
        false => format!("{} of {} in the group", shown.join(", "), calls.len()),
    };
    if more > 0 && !shown.is_empty() {
        text += &format!(" ({more} more differ)");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(count: u32, dtype: &str) -> Shape {
        Shape::new("AllReduce")
            .with(Field::Count, count)
            .with(Field::DataType, dtype)
            .with(Field::Operator, "sum")
            .with(Field::Number, 4)
    }

    fn said(each: &[Vec<Shape>]) -> (String, String) {
        let found = disagreement(each).unwrap();
        (found.fields, found.who)
    }

    #[test]
    fn the_ranks_that_differ_from_most_are_named_with_the_fields() {
        let usual = || vec![call(5, "float32")];
        assert_eq!(disagreement(&[usual(), usual()]), None);
        let mut each = vec![usual(); 9];
        each[3] = vec![call(6, "float32")];
        each[0] = each[3].clone();
        each[7] = vec![call(5, "int32")];
        assert_eq!(
            said(&each),
            (
                "count and data type".into(),
                "ranks 1, 2, 4-6, 8 called AllReduce(count 5, float32, sum) #4 but \
                 ranks 0, 3 called AllReduce(count 6, float32, sum) #4, \
                 rank 7 called AllReduce(count 5, int32, sum) #4"
                    .into()
            )
        );
    }

    #[test]
    fn another_operation_is_its_name_and_what_both_have() {
        let gather = Shape::new("Gather")
            .with(Field::Count, 5)
            .with(Field::DataType, "float32")
            .with(Field::Root, 0)
            .with(Field::Number, 5);
        let (fields, who) = said(&[vec![call(5, "float32")], vec![gather]]);
        assert_eq!(fields, "operation and sequence number");
        assert!(who.contains("rank 1 called Gather(count 5, float32, root 0) #5"));
        let refused = call(5, "float32").with(Field::Refusal, "a NULL");
        let (fields, who) = said(&[vec![call(5, "float32")], vec![refused]]);
        assert_eq!(fields, "being refused");
        assert!(who.ends_with("#4 (refused there: a NULL)"), "{who}");
    }

    #[test]
    fn lists_are_bounded_and_say_how_many_more() {
        let each: Vec<Vec<Shape>> = (0..200).map(|n| vec![call(n, "int8")]).collect();
        let (fields, who) = said(&each);
        assert_eq!(fields, "count");
        assert!(
            who.contains("192 more ranks called yet others (ranks 8-199)"),
            "{who}"
        );
        assert!(who.len() < 1000, "{who}");
    }

    #[test]
    fn of_groups_only_what_differs_is_shown() {
        let group = |odd: u32| -> Vec<Shape> {
            let count = |at| if at % 2 == 0 { at } else { at + odd };
            (0..10).map(|at| call(count(at), "int8")).collect()
        };
        let (fields, who) = said(&[group(0), group(0), group(7)]);
        assert_eq!(fields, "count");
        assert!(
            who.contains("rank 2 called AllReduce(count 8, int8, sum) #4 as call 2, "),
            "{who}"
        );
        assert!(who.contains("of 10 in the group (2 more differ)"), "{who}");
        let (fields, who) = said(&[group(0), group(0)[..9].to_vec()]);
        assert_eq!(fields, "number of calls in the group");
        assert!(who.ends_with("rank 1 called 9 calls in the group"), "{who}");
    }

    #[test]
    fn calls_survive_the_wire() {
        let mut writer = Writer::default();
        call(3, "int8").encode(&mut writer);
        assert_eq!(Shape::decode(&mut Reader(&writer.0)), Some(call(3, "int8")));
        for cut in 0..writer.0.len() {
            assert_eq!(Shape::decode(&mut Reader(&writer.0[..cut])), None);
        }
    }
}
