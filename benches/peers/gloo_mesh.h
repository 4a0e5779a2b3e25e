// gloo's ranks, connected with each other over TCP.
#ifndef GLOO_MESH_H
#define GLOO_MESH_H

#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

#include <memory>

namespace gloo_mesh {

// The store's argument is a reference in older versions of gloo and a shared pointer in newer ones.
template <class Context, class Device>
auto connect(Context& context, std::shared_ptr<gloo::rendezvous::Store> store, Device device, int)
    -> decltype(context.connectFullMesh(store, device)) {
    context.connectFullMesh(store, device);
}
template <class Context, class Device>
auto connect(Context& context, std::shared_ptr<gloo::rendezvous::Store> store, Device device, long)
    -> decltype(context.connectFullMesh(*store, device)) {
    context.connectFullMesh(*store, device);
}

// Over the interface that has the address; the ranks meet in files of the folder.
inline std::shared_ptr<gloo::Context> make(int rank, int nranks, const char* address, const char* folder) {
    gloo::transport::tcp::attr attributes;
    attributes.hostname = address;
    auto device = gloo::transport::tcp::CreateDevice(attributes);
    auto mesh = std::make_shared<gloo::rendezvous::Context>(rank, nranks);
    connect(*mesh, std::make_shared<gloo::rendezvous::FileStore>(folder), device, 0);
    return mesh;
}

}  // namespace gloo_mesh

#endif
