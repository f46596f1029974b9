// The same as client.cc from C#, by the C API of ONNX Runtime, so that any CLR runs it:
//
//   mcs Client.cs && mono Client.exe PROVIDER MODEL STEPS [NAME TYPE DIMS FILE]...
//
// With the package Microsoft.ML.OnnxRuntime it is shorter: OrtEnv.Instance() has
// RegisterExecutionProviderLibrary and GetEpDevices, SessionOptions AppendExecutionProvider of these.
using System;
using System.Collections.Generic;
using System.IO;
using System.Linq;
using System.Runtime.InteropServices;

static class Client {
  [DllImport("libonnxruntime.so.1")] static extern IntPtr OrtGetApiBase();
  delegate IntPtr F1(IntPtr a);
  delegate IntPtr F2(IntPtr a, IntPtr b);
  delegate IntPtr F3(IntPtr a, IntPtr b, IntPtr c);
  delegate IntPtr F4(IntPtr a, IntPtr b, IntPtr c, IntPtr d);
  delegate IntPtr F5(IntPtr a, IntPtr b, IntPtr c, IntPtr d, IntPtr e);
  delegate IntPtr F7(IntPtr a, IntPtr b, IntPtr c, IntPtr d, IntPtr e, IntPtr f, IntPtr g);
  static IntPtr api, cell = Marshal.AllocHGlobal(16), other = Marshal.AllocHGlobal(512);

  static T Function<T>(IntPtr table, int place) {
    return (T)(object)Marshal.GetDelegateForFunctionPointer(Marshal.ReadIntPtr(table, 8 * place), typeof(T));
  }
  static IntPtr Raw(int place, params IntPtr[] a) { // places in the table never change
    switch (a.Length) {
      case 1: return Function<F1>(api, place)(a[0]);
      case 2: return Function<F2>(api, place)(a[0], a[1]);
      case 3: return Function<F3>(api, place)(a[0], a[1], a[2]);
      case 4: return Function<F4>(api, place)(a[0], a[1], a[2], a[3]);
      case 5: return Function<F5>(api, place)(a[0], a[1], a[2], a[3], a[4]);
      default: return Function<F7>(api, place)(a[0], a[1], a[2], a[3], a[4], a[5], a[6]);
    }
  }
  static void Do(int place, params IntPtr[] a) {
    var status = Raw(place, a);
    if (status != IntPtr.Zero) throw new Exception(Marshal.PtrToStringAnsi(Raw(2, status)));
  }
  static IntPtr Made(int place, params IntPtr[] a) { // what its last argument points to afterwards
    Do(place, a.Concat(new[] {cell}).ToArray());
    return Marshal.ReadIntPtr(cell);
  }
  static IntPtr Text(string text) { return Marshal.StringToHGlobalAnsi(text); }
  static IntPtr Number(long value) { return new IntPtr(value); }
  static IntPtr[] Pointers(IntPtr at, long n) {
    return Enumerable.Range(0, (int)n).Select(k => Marshal.ReadIntPtr(at, 8 * k)).ToArray();
  }

  static IntPtr Opened(string provider, string model) {
    api = Function<F1>(OrtGetApiBase(), 0)(Number(23));
    var env = Made(3, Number(3), Text("client"));
    Do(301, env, Text("autotune"), Text(provider));                     // RegisterExecutionProviderLibrary
    Do(303, env, other, cell);                                          // GetEpDevices
    var devices = Pointers(Marshal.ReadIntPtr(other), Marshal.ReadInt64(cell));
    var ours = devices.First(d => Marshal.PtrToStringAnsi(Raw(312, d)) == "AutotuneExecutionProvider");
    Marshal.WriteIntPtr(other, ours);
    var options = Made(10);
    Do(304, options, env, other, Number(1), IntPtr.Zero, IntPtr.Zero, IntPtr.Zero);  // …_V2
    return Made(7, env, Text(model), options);                          // CreateSession
  }
  static IntPtr Read(IntPtr allocator, string type, string dims, string path) {
    var shape = dims.Split('x').Select(long.Parse).ToArray();
    Marshal.Copy(shape, 0, other, shape.Length);
    var value = Made(48, allocator, other, Number(shape.Length), Number(type == "float" ? 1 : 7));
    var bytes = File.ReadAllBytes(path);
    Marshal.Copy(bytes, 0, Made(51, value), bytes.Length);
    return value;
  }
  static void Write(IntPtr value, string name, int n) {
    var info = Made(65, value);
    long rank = (long)Made(61, info);
    Do(62, info, other, Number(rank));
    Console.WriteLine(string.Join(" ", new object[] {name}.Concat(Pointers(other, rank).Select(e => (object)(long)e))));
    var bytes = new byte[(long)Made(318, value)];
    if (bytes.Length > 0) Marshal.Copy(Made(51, value), bytes, 0, bytes.Length);
    File.WriteAllBytes(n + ".out", bytes);
  }

  static void Run(string[] args) {
    IntPtr session = Opened(args[0], args[1]), allocator = Made(78), memory = Made(69, Number(1), Number(0));
    var given = new Dictionary<string, IntPtr>();
    for (int n = 3; n + 3 < args.Length; n += 4) given[args[n]] = Read(allocator, args[n + 1], args[n + 2], args[n + 3]);
    var names = Enumerable.Range(0, (int)Made(31, session))
                    .Select(n => Marshal.PtrToStringAnsi(Made(37, session, Number(n), allocator))).ToArray();
    var made = new IntPtr[0];
    for (int step = 0; step < int.Parse(args[2]); step++) {
      var binding = Made(134, session);
      foreach (var one in given) Do(136, binding, Text(one.Key), one.Value);
      foreach (var name in names) Do(138, binding, Text(name), memory);
      Do(133, session, IntPtr.Zero, binding);                           // RunWithBinding
      Do(140, binding, allocator, other, cell);                         // GetBoundOutputValues
      made = Pointers(Marshal.ReadIntPtr(other), Marshal.ReadInt64(cell));
      for (int n = 0; n < names.Length; n++)
        if (names[n].StartsWith("present")) given["past" + names[n].Substring(7)] = made[n];
    }
    for (int n = 0; n < made.Length; n++) Write(made[n], names[n], n);
  }
  static int Main(string[] args) {
    try { Run(args); return 0; }
    catch (Exception error) { Console.Error.WriteLine("error: " + error.Message); return 1; }
  }
}
