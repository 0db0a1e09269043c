# SPDX-License-Identifier: Apache-2.0
"""Read the methods that a JVM has interpreted, and the owners of locks for which threads wait, by the tables that
HotSpot has for debuggers (`gHotSpotVMStructs` and `gHotSpotVMTypes` in vmStructs.cpp). A frame of the interpreter holds
the address of its `Method` object. Memory may hold anything: reads, loops and time are bounded.

owner_child.py runs this file with the bare interpreter, so it imports nothing of this project."""

import contextlib
import os
import re
import struct
import time
from collections.abc import Iterator
from typing import NamedTuple

_MOST_CPU_S = 1.2
_MOST_CLASSES, _MOST_METHODS, _MOST_ROWS = 1 << 17, 1 << 12, 1 << 14  # methods of a class; rows of a table
_PAGE, _MOST_PAGES, _MOST_NAME, _MOST_TEXT = 4096, 1 << 15, 1024, 4 << 20
_SYMBOL, _DYNAMIC, _PHDR = struct.Struct("<IBBHQQ"), struct.Struct("<QQ"), struct.Struct("<IIQQQQQQ")
_EHDR_PHOFF, _EHDR_PHNUM, _PT_DYNAMIC, _DT_STRTAB, _DT_SYMTAB = 32, 56, 2, 5, 6
_FIELD, _TYPE = struct.Struct("<QQQi4xQQ"), struct.Struct("<QQiii4xQ")  # VMStructEntry and VMTypeEntry
_POINTER, _ANONYMOUS_OWNER, _MOST_MAPS = 8, 1, 1 << 24
_MOST_NAMES, _MOST_SHIFT, _READS_TIMED = 1 << 15, 10, 64
_COLORS, _COMPACT = 12, 42  # bits of a colored reference before those of its place; of a header before the class
_LAYOUTS = b"UseCompressedOops", b"UseCompressedClassPointers", b"UseCompactObjectHeaders", b"UseZGC", b"ZGenerational"
_MOST_FIELDS, _MOST_SUPERS, _LEAST_LONG, _EXTRAS = 1 << 10, 8, 192, (1, 4, 16)  # fieldInfo.hpp, unsigned5.hpp
_UNREADABLE = OSError, OverflowError, KeyError, ValueError, MemoryError, struct.error
_THREAD_CLASS = b"vmClasses::_klasses[static_cast<int>(vmClassID::Thread_klass_knum)]"
_OWNABLE = "java/util/concurrent/locks/AbstractOwnableSynchronizer"
_TYPE_NAME = re.compile(r"(\[*)(?:L([^;]*);|([BCDFIJSZV]))")
_CLASS_NAME = re.compile(r"[\w$/\[;+.-]+")
_SIMPLE = dict(zip("BCDFIJSZV", "byte char double float int long short boolean void".split(), strict=True))


class _Memory:
    """Reader of a JVM's memory that caches pages. Raises OSError: memory cannot be read, or the time is over."""

    def __init__(self, fd: int) -> None:
        self._fd, self._pages, self._until_s = fd, dict[int, bytes](), time.thread_time() + _MOST_CPU_S
        self._reads = 0

    def read(self, address: int, size: int) -> bytes:
        self._reads += 1
        if self._reads % _READS_TIMED == 0:  # pages that are there already take time, too
            self.check_time()
        number, offset = divmod(address, _PAGE)
        content = self._page(number)[offset : offset + size]
        while len(content) < size:
            number += 1
            content += self._page(number)[: size - len(content)]
        return content

    def _page(self, number: int) -> bytes:
        page = self._pages.get(number)
        if page is None:
            if number >> 51:
                raise OSError
            if len(self._pages) >= _MOST_PAGES:
                self._pages.clear()
            page = self._pages[number] = os.pread(self._fd, _PAGE, number * _PAGE)
        if len(page) < _PAGE:
            raise OSError
        return page

    def check_time(self) -> None:
        if time.thread_time() > self._until_s:
            raise OSError

    def number(self, address: int, size: int = _POINTER) -> int:
        return int.from_bytes(self.read(address, size), "little")

    def text(self, address: int) -> bytes:
        """Return the C string at an address, at most 64 bytes."""
        return self.read(address, 64).partition(b"\0")[0]

    def rows(self, address: int, row: struct.Struct) -> Iterator[tuple[int, ...]]:
        """Yield the rows of the table at an address, up to a row whose first value is 0. `row`: layout of a row."""
        for place in range(address, address + _MOST_ROWS * row.size, row.size):
            values = row.unpack(self.read(place, row.size))
            if not values[0]:
                return
            yield values


class _Hotspot:
    """Reader of one JVM's objects. `base`: address of libjvm.so. Raises OSError, KeyError: parts are missing."""

    def __init__(self, memory: _Memory, base: int) -> None:
        self._memory, self._names = memory, dict[int, str]()
        self._oops: tuple[int, int] | None = None  # base and shift of compressed references
        self._narrow_class: tuple[int, int] | None = None  # likewise, of classes
        self._has_layout = self._is_compact = self._is_colored = False
        fields, types = _symbols(memory, base, b"gHotSpotVMStructs", b"gHotSpotVMTypes")
        self._static, self._offset = dict[bytes, int](), dict[bytes, int]()
        for type_, name, _, is_static, offset, address in memory.rows(memory.number(fields), _FIELD):
            key = memory.text(type_) + b"::" + memory.text(name)
            self._static[key], self._offset[key] = address if is_static else 0, offset
        rows = memory.rows(memory.number(types), _TYPE)
        self._size = {memory.text(row[0]): row[5] for row in rows}

    def at(self, address: int, field: bytes, size: int = _POINTER) -> int:
        """Return the member `field` (`Type::_name`) of the object at `address`: an integer of `size` bytes."""
        return self._memory.number(address + self._offset[field], size)

    def classes(self) -> Iterator[int]:
        """Yield the addresses of the loaded classes (`Klass`) of all class loaders."""
        left, loader = _MOST_CLASSES, self._memory.number(self._static[b"ClassLoaderDataGraph::_head"])
        while loader and left:
            class_ = self.at(loader, b"ClassLoaderData::_klasses")
            while class_ and left:
                left -= 1
                self._memory.check_time()
                yield class_
                class_ = self.at(class_, b"Klass::_next_link")
            left, loader = max(left - 1, 0), self.at(loader, b"ClassLoaderData::_next")

    def lines(self, *, counted: bool = True) -> Iterator[bytes]:
        """Yield a line of `abi.counters.JIT_MAP` for each method; `counted`: only if the interpreter counted calls."""
        for class_ in self.classes():
            with contextlib.suppress(*_UNREADABLE):  # one that is unloaded meanwhile
                yield from self._methods_of(class_, counted)

    def _methods_of(self, class_: int, counted: bool) -> Iterator[bytes]:
        size, data = self._size[b"Method"], self._offset[b"Array<Method*>::_data"]
        if self.at(class_, b"Klass::_layout_helper", 4) >> 31:  # of an array: it has no methods
            return
        methods = self.at(class_, b"InstanceKlass::_methods")
        number = min(self.at(methods, b"Array<int>::_length", 4), _MOST_METHODS) if methods else 0
        for (method,) in struct.iter_unpack("<Q", self._memory.read(methods + data, number * _POINTER)):
            if not counted or self.at(method, b"Method::_method_counters"):
                yield b":method %x %x %s\n" % (method, size, self._name_of(method).encode("utf-8", "replace"))

    def awaited_locks(self) -> dict[int, "AwaitedLock"]:
        """Return tid → lock with a known owner for which this thread waits. A monitor notes its owner
        (`ObjectMonitor::_owner`) as address of the thread, as its id, or as an address in its stack; or not yet: then
        the monitor's object is in the owner's list of locked objects (`LockStack`)."""
        threads = self._memory.number(self._static[b"ThreadsSMRSupport::_java_thread_list"])
        number = min(self.at(threads, b"ThreadsList::_length", 4), _MOST_ROWS)
        array = self._memory.read(self.at(threads, b"ThreadsList::_threads"), number * _POINTER)
        system, own_id = b"JavaThread::_osthread", b"JavaThread::_monitor_owner_id"
        system = system if system in self._offset else b"Thread::_osthread"
        with contextlib.suppress(*_UNREADABLE):
            self._find_layout()
        tids, stacks, monitors = dict[int, int](), list[tuple[int, int, int]](), list[tuple[int, int]]()
        objects_of = dict[int, int]()  # object of a thread → tid
        locked = dict[int, int]()  # object → tid
        for (thread,) in struct.iter_unpack("<Q", array):
            tid = self.at(self.at(thread, system), b"OSThread::_thread_id", 4)
            tids[self.at(thread, own_id) if own_id in self._offset else thread] = tid
            objects_of[self._reference(self.at(thread, b"JavaThread::_threadObj"), None)] = tid
            base = self.at(thread, b"JavaThread::_stack_base")
            stacks.append((base - self.at(thread, b"JavaThread::_stack_size"), base, tid))
            if monitor := self.at(thread, b"JavaThread::_current_pending_monitor"):
                monitors.append((tid, monitor))
            if b"JavaThread::_lock_stack" in self._offset:
                stack = thread + self._offset[b"JavaThread::_lock_stack"]
                first = stack + self._offset[b"LockStack::_base[0]"]
                size = max(thread + self.at(stack, b"LockStack::_top", 4) - first, 0)
                objects = struct.iter_unpack("<Q", self._memory.read(first, min(size & -_POINTER, _PAGE)))
                locked |= {row[0]: tid for row in objects}
        locks = dict[int, AwaitedLock]()
        with contextlib.suppress(*_UNREADABLE):
            locks |= self._awaited_synchronizers(objects_of) if self._has_layout else {}
        for tid, monitor in monitors:
            self._memory.check_time()
            owner, object_ = self.at(monitor, b"ObjectMonitor::_owner"), 0
            with contextlib.suppress(*_UNREADABLE):
                object_ = self._reference(self.at(monitor, b"ObjectMonitor::_object"), None)
            holder = tids.get(owner) or next((its for begin, end, its in stacks if begin <= owner < end), 0)
            if owner == _ANONYMOUS_OWNER:
                holder = locked.get(object_, 0)
            if holder:
                locks[tid] = AwaitedLock(holder, True, monitor, self._type_of(object_))
        return locks

    def _awaited_synchronizers(self, tids: dict[int, int]) -> dict[int, "AwaitedLock"]:
        """Return tid → synchronizer with an exclusive owner (ReentrantLock, ReentrantReadWriteLock, ...) for which this
        thread is parked. `tids`: address of the java.lang.Thread → tid, of all threads."""
        place = self._field(self._memory.number(self._static[_THREAD_CLASS]), "parkBlocker")
        locks, owner_at = dict[int, AwaitedLock](), dict[int, int]()
        for thread, tid in tids.items():
            if blocker := self._reference(thread + place, self._oops):
                class_ = self._class_of(blocker)
                if class_ not in owner_at:
                    owner_at[class_] = self._owner_field(class_)
                owner = tids.get(self._reference(blocker + owner_at[class_], self._oops)) if owner_at[class_] else None
                if owner and owner != tid:
                    locks[tid] = AwaitedLock(owner, False, blocker, self._type_of(blocker))
        return locks

    def _find_layout(self) -> None:
        """Set how references and class pointers are stored. Raises ValueError: this layout cannot be read."""
        is_set = self._flags(*_LAYOUTS)
        self._is_compact = is_set[b"UseCompactObjectHeaders"]
        has_generations = is_set[b"ZGenerational"] or b"JavaThread::_monitor_owner_id" in self._offset  # JDK 24: always
        self._is_colored = is_set[b"UseZGC"] and has_generations
        if is_set[b"UseCompressedOops"]:
            self._oops = self._narrow(b"CompressedOops::", b"_narrow_oop.")
        if is_set[b"UseCompressedClassPointers"]:
            self._narrow_class = self._narrow(b"CompressedKlassPointers::", b"_narrow_klass.")
        self._has_layout = True

    def _class_of(self, object_: int) -> int:
        if self._is_compact and self._narrow_class:
            return self._narrow_class[0] + (self._memory.number(object_) >> _COMPACT << self._narrow_class[1])
        place = object_ + self._offset[b"oopDesc::_metadata._klass"]
        return self._reference(place, self._narrow_class) if self._narrow_class else self._memory.number(place)

    def _type_of(self, object_: int) -> str:
        """Return the name of an object's class, "class " + NAME for the object of the class NAME; "" if unknown."""
        with contextlib.suppress(*_UNREADABLE):
            name = self._class_name(self._class_of(object_)) if self._has_layout and object_ else ""
            if name == "java.lang.Class":  # of a static synchronized method
                place = self._memory.number(self._static[b"java_lang_Class::_klass_offset"], 4)
                return "class " + self._class_name(self._memory.number(object_ + place))
            return name
        return ""

    def _class_name(self, class_: int) -> str:
        """Return the name of the class at address `class_` as Java spells it. Raises ValueError: there is no class."""
        name = self._text_of(self.at(class_, b"Klass::_name"))
        if not _CLASS_NAME.fullmatch(name):
            raise ValueError
        if name[0] == "[" and (array := _TYPE_NAME.fullmatch(name)):
            name = (array[2] or _SIMPLE[array[3]]) + "[]" * len(array[1])
        return name.replace("/", ".")

    def _flags(self, *names: bytes) -> dict[bytes, bool]:
        """Return name → value of boolean options of the JVM; False for an option that it lacks."""
        values, flags = dict.fromkeys(names, False), self._memory.number(self._static[b"JVMFlag::flags"])
        for row in range(min(self._memory.number(self._static[b"JVMFlag::numFlags"]), _MOST_ROWS)):
            flag = flags + row * self._size[b"JVMFlag"]
            name = self.at(flag, b"JVMFlag::_name")
            if name and (text := self._memory.text(name)) in values:
                values[text] = bool(self._memory.number(self.at(flag, b"JVMFlag::_addr"), 1))
        return values

    def _narrow(self, owner: bytes, before: bytes) -> tuple[int, int]:
        """Return (base, shift) of compressed addresses. `owner`: class with both as static fields, as
        "CompressedOops::". `before`: what their names began with before JDK 25."""
        before = before if owner + before + b"_base" in self._static else b""
        base, shift = (self._static[owner + before + name] for name in (b"_base", b"_shift"))
        bits = self._memory.number(shift, 4)
        if bits > _MOST_SHIFT:
            raise ValueError
        return self._memory.number(base), bits

    def _reference(self, address: int, narrow: tuple[int, int] | None) -> int:
        """Return the reference (an address) stored at `address`, 0 for null. `narrow`: (base, shift) if compressed.
        Colored ones of ZGC have one of the bits 12 to 15 set, next to the last bit of the address (zAddress.hpp)."""
        word = self._memory.number(address, 4 if narrow else _POINTER)
        if self._is_colored and not narrow:
            return word >> _COLORS + (word >> _COLORS & 15).bit_length()
        return narrow[0] + (word << narrow[1]) if narrow and word else word

    def _owner_field(self, class_: int) -> int:
        """Return the offset of `exclusiveOwnerThread` in objects of the class at `class_`; 0 if they have none."""
        for _ in range(_MOST_SUPERS):
            if not class_:
                return 0
            if self._text_of(self.at(class_, b"Klass::_name")) == _OWNABLE:
                return self._field(class_, "exclusiveOwnerThread")
            class_ = self.at(class_, b"Klass::_super")
        return 0

    def _field(self, class_: int, name: str) -> int:
        """Return the offset in objects of the field `name` that the class declares. Raises KeyError: no such field."""
        words = self.at(class_, b"InstanceKlass::_constants") + self._size[b"ConstantPool"]
        for index, offset in self._fields(class_):
            if self._text_of(self._memory.number(words + _POINTER * index)) == name:
                return offset
        raise KeyError(name)

    def _fields(self, class_: int) -> Iterator[tuple[int, int]]:
        """Yield (index of the name in the constant pool, offset in objects) of each field that a class declares.
        HotSpot stores six numbers of 16 bits for each, since JDK 21 packed ones (`FieldInfo` in fieldInfo.hpp)."""
        if b"InstanceKlass::_fields" in self._offset:
            fields = self.at(class_, b"InstanceKlass::_fields") + self._offset[b"Array<u2>::_data"]
            number = min(self.at(class_, b"InstanceKlass::_java_fields_count", 2), _MOST_FIELDS)
            for _, name, _, _, low, high in struct.iter_unpack("<6H", self._memory.read(fields, 12 * number)):
                yield name, (high << 16 | low) >> 2
            return
        stream = self.at(class_, b"InstanceKlass::_fieldinfo_stream")
        size = min(self.at(stream, b"Array<int>::_length", 4), _MOST_FIELDS * 16)
        numbers = _unpacked(self._memory.read(stream + self._offset[b"Array<u1>::_data"], size))
        number, _ = next(numbers), next(numbers)
        for _ in range(min(number, _MOST_FIELDS)):
            name, _, offset, _, flags = (next(numbers) for _ in range(5))
            for bit in _EXTRAS:
                if flags & bit:
                    next(numbers)
            yield name, offset

    def _name_of(self, method: int) -> str:
        """Return the name of a method in the form of `Method::external_name`: `void java.lang.Thread.sleep(long)`."""
        const = self.at(method, b"Method::_constMethod")
        pool = self.at(const, b"ConstMethod::_constants")
        words = pool + self._size[b"ConstantPool"]
        name, signature = (
            self._text_of(self._memory.number(words + _POINTER * self.at(const, b"ConstMethod::" + index, 2)))
            for index in (b"_name_index", b"_signature_index")
        )
        holder = self._text_of(self.at(self.at(pool, b"ConstantPool::_pool_holder"), b"Klass::_name"))
        *arguments, result = [
            (class_.replace("/", ".") or _SIMPLE[simple]) + "[]" * len(dimensions)
            for dimensions, class_, simple in _TYPE_NAME.findall(signature)
        ] or [""]
        text = f"{result} {holder.replace('/', '.')}.{name}({', '.join(arguments)})"
        return "".join(character if character.isprintable() else "?" for character in text)[:_MOST_NAME]

    def _text_of(self, symbol: int) -> str:
        """Return the text of the `Symbol` at an address."""
        if len(self._names) > _MOST_NAMES:
            self._names.clear()
        if symbol not in self._names:
            size, place = self.at(symbol, b"Symbol::_length", 2), symbol + self._offset[b"Symbol::_body"]
            self._names[symbol] = self._memory.read(place, min(size, _MOST_NAME)).decode("utf-8", "replace")
        return self._names[symbol]


def _unpacked(content: bytes) -> Iterator[int]:
    """Yield the numbers packed into bytes (`UNSIGNED5` in unsigned5.hpp), then zeros without end."""
    number = place = 0
    for byte in content:
        number += byte - 1 << 6 * place
        place += 1
        if byte < _LEAST_LONG or place == 5:
            yield number
            number = place = 0
    while True:
        yield 0


def _symbols(memory: _Memory, base: int, *names: bytes) -> list[int]:
    """Return the addresses of exported symbols of the library mapped at `base`, 0 for each that it lacks."""
    header, number = memory.number(base + _EHDR_PHOFF), memory.number(base + _EHDR_PHNUM, 2)
    segments = [_PHDR.unpack(memory.read(base + header + row * _PHDR.size, _PHDR.size)) for row in range(number)]
    (dynamic,) = (segment[3] for segment in segments if segment[0] == _PT_DYNAMIC)
    tags = {tag: value if value >= base else base + value for tag, value in memory.rows(base + dynamic, _DYNAMIC)}
    strings, symbols, address_of = tags[_DT_STRTAB], tags[_DT_SYMTAB], dict.fromkeys(names, 0)
    for place in range(symbols, min(strings, symbols + _MOST_ROWS * _SYMBOL.size), _SYMBOL.size):
        name, _, _, _, value, _ = _SYMBOL.unpack(memory.read(place, _SYMBOL.size))
        if (text := memory.text(strings + name)) in address_of:
            address_of[text] = base + value
    return list(address_of.values())


def lines_of(fd: int, base: int) -> bytes:
    """Return lines of `abi.counters.JIT_MAP` for the interpreted methods of a JVM: found within _MOST_CPU_S, at most 4
    MB. `fd`: descriptor of /proc/PID/mem. `base`: address of libjvm.so."""
    lines, left = list[bytes](), _MOST_TEXT
    with contextlib.suppress(*_UNREADABLE):
        jvm = _Hotspot(_Memory(fd), base)
        for counted in (True, False):  # with -Xint, no calls are counted
            for line in () if lines else jvm.lines(counted=counted):
                if (left := left - len(line)) < 0:
                    break
                lines.append(line)
    return b"".join(lines)


class AwaitedLock(NamedTuple):
    """A lock for which a thread of a JVM waits."""

    owner: int  # tid in the process's own PID namespace
    is_monitor: bool  # else a synchronizer of java.util.concurrent
    address: int  # of the `ObjectMonitor` or the synchronizer
    type: str  # as `_Hotspot._type_of` returns it


def awaited_locks(pid: int) -> dict[int, AwaitedLock]:
    """Return tid → lock with a known owner for which this thread of a JVM waits, with tids of the process's own PID
    namespace; {} if they cannot be read. May block: a process can lock its mappings, or map a file of a hung server."""
    with contextlib.suppress(*_UNREADABLE):
        with open(f"/proc/{pid}/maps", "rb") as file:  # direct: of the kernel
            starts = re.findall(rb"(?m)^([0-9a-f]+)-.*/libjvm\.so$", file.read(_MOST_MAPS))
        with open(f"/proc/{pid}/mem", "rb") as file:  # direct: of the kernel
            return _Hotspot(_Memory(file.fileno()), int(starts[0], 16)).awaited_locks() if starts else {}
    return {}
