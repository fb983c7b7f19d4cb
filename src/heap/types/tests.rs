use super::*;
use proptest::prelude::*;
use std::time::{Duration, Instant};

fn one(table: &mut TypeTable, name: &str, size: u64, shape: Shape) -> TypeId {
    table.push(TypeInfo { name: name.to_owned(), size, shape, ..TypeInfo::default() })
}

fn field(offset: u64, name: &str, of: TypeId) -> Field {
    Field { offset, name: name.to_owned(), of }
}

fn path(table: &TypeTable, of: TypeId, offset: u64) -> Option<String> {
    table.place(of, offset).map(|place| place.path)
}

#[test]
fn only_the_last_member_is_open() {
    let mut table = TypeTable::default();
    let long = one(&mut table, "long", 8, Shape::Scalar);
    let none = one(&mut table, "", 0, Shape::Array(long, Some(0)));
    let open = one(&mut table, "", 0, Shape::Array(long, None));
    // an empty array that aligns what follows
    let aligned = one(&mut table, "aligned", 16, Shape::Struct(vec![field(0, "align", none), field(8, "value", long)]));
    assert!(!table.is_open(aligned));
    assert_eq!(path(&table, aligned, 8).as_deref(), Some("value"));
    assert_eq!(path(&table, aligned, 24), None);
    let tail = one(&mut table, "tail", 8, Shape::Struct(vec![field(0, "count", long), field(8, "rows", open)]));
    let outer = one(&mut table, "outer", 16, Shape::Struct(vec![field(0, "head", long), field(8, "tail", tail)]));
    assert!(table.is_open(outer));
    assert_eq!(path(&table, outer, 8 + 8 + 5 * 8).as_deref(), Some("tail.rows[5]"));
}

#[test]
fn arrays_of_arrays_have_sizes() {
    let mut table = TypeTable::default();
    let int = one(&mut table, "int", 4, Shape::Scalar);
    let row = one(&mut table, "", 0, Shape::Array(int, Some(3)));
    let rows = one(&mut table, "", 0, Shape::Array(row, Some(2)));
    assert_eq!(table.size(rows), 24);
    assert_eq!(table.name(rows), "int[2][3]");
    let pointer = one(&mut table, "", 8, Shape::Pointer(rows));
    let pointers = one(&mut table, "", 0, Shape::Array(pointer, Some(5)));
    assert_eq!(table.name(pointers), "int[2][3] *[5]");
    let deeper = one(&mut table, "", 8, Shape::Pointer(pointer));
    assert_eq!(table.name(deeper), "int[2][3] **");
    assert_eq!(path(&table, rows, 20).as_deref(), Some("[1][2]"));
    assert_eq!(path(&table, rows, 24), None);
}

#[test]
fn many_members_within_many_members_take_little_time() {
    let mut table = TypeTable::default();
    let long = one(&mut table, "long", 8, Shape::Scalar);
    let mut inner = one(&mut table, "", 0, Shape::Array(long, None));
    for depth in 0..40 {
        let fields = (0..50_000).map(|number| field(0, &format!("m{number}"), inner)).collect();
        inner = one(&mut table, &format!("s{depth}"), 8, Shape::Union(fields));
    }
    let since = Instant::now();
    for offset in 0..20 {
        let _ = table.place(inner, offset * 8);
    }
    assert!(since.elapsed() < Duration::from_secs(5), "{:?}", since.elapsed());
}

#[test]
fn long_paths_end() {
    let mut table = TypeTable::default();
    let mut inner = one(&mut table, "long", 8, Shape::Scalar);
    let name = "é".repeat(2000);
    for _ in 0..40 {
        inner = one(&mut table, "", 8, Shape::Struct(vec![field(0, &name, inner)]));
    }
    let told = path(&table, inner, 0).unwrap();
    assert!(told.len() <= LONGEST_PATH + '…'.len_utf8() && told.ends_with('…'));
}

fn shape(types: u32) -> impl Strategy<Value = Shape> {
    let of = (0..types).prop_map(TypeId);
    let size = prop_oneof![0..64u64, Just(u64::MAX), Just(u64::MAX - 7), Just(1 << 40)];
    let fields = proptest::collection::vec((size.clone(), of.clone(), any::<bool>()), 0..6).prop_map(|fields| {
        let fields = fields.into_iter().map(|(offset, of, named)| field(offset, if named { "m" } else { "" }, of));
        let mut fields: Vec<Field> = fields.collect();
        fields.sort_by_key(|field| field.offset);
        fields
    });
    prop_oneof![
        Just(Shape::Opaque),
        Just(Shape::Bytes),
        Just(Shape::Scalar),
        of.clone().prop_map(Shape::Pointer),
        fields.clone().prop_map(Shape::Struct),
        fields.prop_map(Shape::Union),
        (of, proptest::option::of(size)).prop_map(|(of, count)| Shape::Array(of, count)),
    ]
}

proptest! {
    /// Whatever leads to what, all questions end, and what a place is said to lead to is in the table.
    #[test]
    fn any_table_is_borne(
        shapes in proptest::collection::vec((shape(12), prop_oneof![0..64u64, Just(u64::MAX)]), 12),
        offsets in proptest::collection::vec(prop_oneof![0..80u64, any::<u64>()], 8),
    ) {
        let mut table = TypeTable::default();
        for (shape, size) in shapes {
            one(&mut table, "", size, shape);
        }
        for of in (0..12).map(TypeId) {
            let _ = (table.name(of), table.size(of), table.tells(of), table.is_open(of));
            for &offset in &offsets {
                let place = table.place(of, offset);
                prop_assert!(place.is_none_or(|place| place.leads.is_none_or(|leads| leads.0 < 12)));
            }
        }
    }
}

/// GCC and clang write `const char*` where demanglers write `char const*`.
#[test]
fn the_side_on_which_const_stands_does_not_count() {
    let same = |a: &str, b: &str| name_hash(&[a]) == name_hash(&[b]);
    assert!(same("Box<const char*>", "Box<char const*>"));
    assert!(same("Map<const std::vector<const int*>&, 3ul>", "Map<std::vector<int const*> const&, 3>"));
    assert!(same("F<void (*)(const char*, int)>", "F<void (*)(char const*, int)>"));
    assert!(same("Box<char* const>", "Box<char*const>"));
    for other in ["Box<char*>", "Box<char* const>", "Box<const char>", "Box<const char* const>", "Box<constchar*>"] {
        assert!(!same("Box<const char*>", other), "{other}");
    }
    assert!(!same("Map<const A, B>", "Map<A, const B>") && !same("A<const B<C>>", "A<B<const C>>"));
    assert!(same("constant::Value", "constant::Value") && !same("constant::Value", "ant::Value"));
}
